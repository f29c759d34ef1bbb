"""Tools of a body of the Messages API."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, model_validator
from typing_extensions import Self

from fastdeploy_lp.entrypoints.openai.protocol.anthropic.conversation import CacheControl
from fastdeploy_lp.entrypoints.openai.protocol.request import RequestModel, require_few
from fastdeploy_lp.entrypoints.openai.protocol.tool import FunctionName
from fastdeploy_lp.request.limits import MAX_TOOLS

CUSTOM = "custom"


class CustomTool(RequestModel):
    """A tool of the client; `input_schema` is the JSON Schema of its input, enforced if `strict`."""

    without_effect: ClassVar[dict[str, tuple[Any, ...]]] = {
        "defer_loading": (False,),
        # The input always comes as it is written.
        "eager_input_streaming": (False, True),
        "allowed_callers": (["direct"],),
        "input_examples": ([],),
    }
    unsupported: ClassVar[dict[str, str]] = {
        "defer_loading": "there is no search for tools here; only false is allowed",
        "allowed_callers": 'this server runs no code; only ["direct"] is allowed',
        "input_examples": "chat templates show no examples; put them into the description",
    }

    type: Literal["custom"] | None = None
    name: FunctionName
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    cache_control: CacheControl | None = None

    @model_validator(mode="before")
    @classmethod
    def _client_tools_only(cls, tool: Any) -> Any:
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind != CUSTOM:
            raise ValueError(f"type: {kind[:64]!r} is not served here; only tools of the type {CUSTOM} are allowed")
        return tool


def _few_tools(value: Any) -> Any:
    require_few("tools", value, MAX_TOOLS)
    return value


FewCustomTools = Annotated[list[CustomTool], BeforeValidator(_few_tools)]


class ToolChoice(RequestModel):
    """The permitted use of tools: as the model decides, any, the one with this `name`, or none."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool = False

    @model_validator(mode="after")
    def _name_goes_with_the_type(self) -> Self:
        if (self.name is not None) != (self.type == "tool"):
            word = "needed" if self.type == "tool" else "not allowed"
            raise ValueError(f"name: {word} with the type {self.type}")
        return self
