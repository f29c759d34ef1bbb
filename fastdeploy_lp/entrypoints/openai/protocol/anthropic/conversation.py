"""Messages of a conversation, as lists of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Tag, model_validator

from fastdeploy_lp.entrypoints.openai.protocol.request import EachOf, RequestModel, require_few
from fastdeploy_lp.request.limits import MAX_MESSAGES

# Types of blocks that a message of each role may have.
BLOCK_TYPES: dict[str, tuple[str, ...]] = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "tool_use"),
    "system": ("text",),
}


class CacheControl(RequestModel):
    """A breakpoint of Anthropic's cache; without effect, since the prefix cache needs none."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextBlock(RequestModel):
    """A text."""

    without_effect: ClassVar[dict[str, tuple[Any, ...]]] = {"citations": ([],)}
    unsupported: ClassVar[dict[str, str]] = {"citations": "citations are not supported"}

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None


class ThinkingBlock(RequestModel):
    """Reasoning of an earlier answer; its signature is not checked."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class ToolUseBlock(RequestModel):
    """A call that an earlier answer requested."""

    without_effect: ClassVar[dict[str, tuple[Any, ...]]] = {"caller": ({"type": "direct"},)}
    unsupported: ClassVar[dict[str, str]] = {"caller": 'this server runs no tools; only {"type": "direct"} is allowed'}

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl | None = None


def require_types(path: str, content: Any, allowed: Sequence[str]) -> None:
    """Raises ValueError, naming `path`, for the first block of another type: pydantic would report a union's errors."""
    for index, block in enumerate(content if isinstance(content, list) else []):
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(kind, str) and kind not in allowed:
            reason = f"{kind[:64]!r} is not supported here; this model reads text, in blocks of type"
            raise ValueError(f"{path}.{index}.type: {reason} {', '.join(allowed)}")


Texts = str | EachOf[TextBlock]
"""A text, or text blocks."""


class ToolResultBlock(RequestModel):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Texts | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None

    @model_validator(mode="before")
    @classmethod
    def _text_blocks_only(cls, block: Any) -> Any:
        if isinstance(block, dict):
            require_types("content", block.get("content"), ("text",))
        return block


def _tag(block: Any) -> str:
    """Returns the tag of a block's type; tags are no names of fields, since locations of errors contain them."""
    kind = block.get("type") if isinstance(block, dict) else getattr(block, "type", None)
    return f"{kind} block"


Block = Annotated[
    Annotated[TextBlock, Tag("text block")]
    | Annotated[ThinkingBlock, Tag("thinking block")]
    | Annotated[ToolUseBlock, Tag("tool_use block")]
    | Annotated[ToolResultBlock, Tag("tool_result block")],
    Discriminator(
        _tag, custom_error_type="block_type", custom_error_message="must be an object with a type, such as text"
    ),
]


class ConversationMessage(RequestModel):
    """One message; the role `system` is allowed within a conversation, besides the field `system`."""

    role: Literal["user", "assistant", "system"]
    content: str | EachOf[Block]

    @model_validator(mode="before")
    @classmethod
    def _blocks_go_with_the_role(cls, message: Any) -> Any:
        if isinstance(message, dict):
            role = message.get("role")
            every = tuple(dict.fromkeys(kind for kinds in BLOCK_TYPES.values() for kind in kinds))
            require_types("content", message.get("content"), BLOCK_TYPES.get(str(role), every))
        return message

    @property
    def blocks(self) -> Sequence[TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock]:
        """The content as blocks."""
        return [TextBlock(type="text", text=self.content)] if isinstance(self.content, str) else self.content


def _few_messages(value: Any) -> Any:
    require_few("messages", value, MAX_MESSAGES)
    return value


FewMessages = Annotated[list[ConversationMessage], BeforeValidator(_few_messages)]
