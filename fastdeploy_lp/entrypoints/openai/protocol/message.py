"""Messages of a conversation in requests."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, model_validator
from typing_extensions import Self

from fastdeploy_lp.entrypoints.openai.protocol.request import RequestModel, require_few
from fastdeploy_lp.request.limits import MAX_MESSAGES


class TextPart(RequestModel):
    """A text content part."""

    type: Literal["text"]
    text: str


class CalledFunction(RequestModel):
    """The function of a call; `arguments` is a JSON object in a string."""

    name: str
    arguments: str


class CalledTool(RequestModel):
    """A call that an earlier answer requested."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    # Calls that clients assemble from a stream still have the deltas' index.
    index: int | None = None


class ChatMessage(RequestModel):
    """One message of a conversation."""

    without_effect: ClassVar[dict[str, tuple[Any, ...]]] = {"annotations": ([],)}
    unsupported: ClassVar[dict[str, str]] = {
        "function_call": "replaced by tool_calls, which are supported",
        "audio": "this model reads text only",
    }

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _text_parts_only(cls, message: Any) -> Any:
        """Rejects other parts before pydantic reports a longer error for the union of string and list."""
        parts = message.get("content") if isinstance(message, dict) else None
        for index, part in enumerate(parts if isinstance(parts, list) else []):
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind != "text":
                raise ValueError(
                    f"content.{index}.type: {kind!r} is not supported; this model reads parts of type text"
                )
        return message

    @model_validator(mode="after")
    def _fields_go_with_the_role(self) -> Self:
        if self.content is None and not (self.tool_calls and self.role == "assistant"):
            raise ValueError(f"content: needed in a message of the role {self.role}, unless it has tool_calls")
        for name in ("tool_calls", "reasoning_content", "refusal"):
            if getattr(self, name) and self.role != "assistant":
                raise ValueError(f"{name}: only allowed in a message of the role assistant, not {self.role}")
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("tool_call_id: needed in a message of the role tool")
        if self.role != "tool" and self.tool_call_id is not None:
            raise ValueError(f"tool_call_id: only allowed in a message of the role tool, not {self.role}")
        return self


def _few_messages(value: Any) -> Any:
    require_few("messages", value, MAX_MESSAGES)
    return value


FewMessages = Annotated[list[ChatMessage], BeforeValidator(_few_messages)]
