"""Tools that a chat request offers to the model."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from fastdeploy_lp.entrypoints.openai.protocol.request import RequestModel

FunctionName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.-]+$")]


class FunctionDefinition(RequestModel):
    """A function that the model may call; `parameters` is the JSON Schema of its arguments."""

    without_effect: ClassVar[dict[str, tuple[Any, ...]]] = {"strict": (False,)}
    unsupported: ClassVar[dict[str, str]] = {
        "strict": "arguments can not be held to the schema without guided decoding, which this server does not have; "
        "only false is allowed"
    }

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(RequestModel):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: FunctionDefinition


class ChosenFunction(RequestModel):
    """The function that has to be called."""

    name: FunctionName


class NamedToolChoice(RequestModel):
    """The tool that has to be called."""

    type: Literal["function"] = "function"
    function: ChosenFunction


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice


class ResponseFormat(RequestModel):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None
