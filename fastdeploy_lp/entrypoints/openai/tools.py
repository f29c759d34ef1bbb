"""Which tools a chat request offers to the model."""

from __future__ import annotations

from typing import Any

from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.message_parser import MessageParsers
from fastdeploy_lp.entrypoints.openai.protocol.chat import ChatCompletionRequest

NEEDS_GUIDED_DECODING = "needs guided decoding, which this server does not have"


def offered_tools(request: ChatCompletionRequest, parsers: MessageParsers) -> list[dict[str, Any]] | None:
    """The tools that the chat template is to show, None for none; raises InvalidRequestError for what has to wait.

    With `tool_choice` "none" they are not shown, so that the model can not ask for them.
    """
    if request.response_format is not None and request.response_format.type != "text":
        kind = request.response_format.type
        raise InvalidRequestError("response_format.type", f"{kind!r} {NEEDS_GUIDED_DECODING}; only 'text' is allowed")
    choice = request.tool_choice
    if choice is not None and choice not in ("none", "auto"):
        named = "a named tool" if not isinstance(choice, str) else f"{choice!r}"
        raise InvalidRequestError("tool_choice", f"{named} {NEEDS_GUIDED_DECODING}; allowed are 'none' and 'auto'")
    if not request.tools:
        if choice == "auto":
            raise InvalidRequestError("tool_choice", "'auto' is only allowed together with tools")
        return None
    if choice == "none":
        return None
    if not parsers.reads_tools:
        reason = "the chat template of this model shows no tool calls that this server can read; --chat-template and "
        raise InvalidRequestError("tools", f"{reason}--tool-call-parser at its start may change that")
    return [tool.model_dump(exclude_none=True) for tool in request.tools]
