"""Events of a streamed message, in the order in which they come."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from fastdeploy_lp.entrypoints.openai.protocol.anthropic.answer import (
    ContentBlock,
    Details,
    MessageResponse,
    MessageUsage,
    StopReason,
)
from fastdeploy_lp.entrypoints.openai.protocol.anthropic.error import MessagesError
from fastdeploy_lp.entrypoints.openai.protocol.request import Omitted
from fastdeploy_lp.request.outputs import ProcessorStop


class MessageStart(BaseModel):
    """The message without content; its usage counts the whole prompt, until the last event."""

    type: Literal["message_start"] = "message_start"
    message: MessageResponse


class Ping(BaseModel):
    """Means nothing."""

    type: Literal["ping"] = "ping"


class BlockStart(Details):
    """The `index`-th block, empty."""

    type: Literal["content_block_start"] = "content_block_start"
    index: int
    content_block: ContentBlock


class TextDelta(BaseModel):
    """More text."""

    type: Literal["text_delta"] = "text_delta"
    text: str


class ThinkingDelta(BaseModel):
    """More reasoning."""

    type: Literal["thinking_delta"] = "thinking_delta"
    thinking: str


class SignatureDelta(BaseModel):
    """The signature, at the end of reasoning."""

    type: Literal["signature_delta"] = "signature_delta"
    signature: str


class InputDelta(BaseModel):
    """More of the JSON of a tool's input, as written by the model."""

    type: Literal["input_json_delta"] = "input_json_delta"
    partial_json: str


class BlockDelta(Details):
    """An addition to the `index`-th block."""

    type: Literal["content_block_delta"] = "content_block_delta"
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(Details):
    """The end of the `index`-th block."""

    type: Literal["content_block_stop"] = "content_block_stop"
    index: int


class StopDelta(BaseModel):
    """Why the message ended; `logits_processors_finish` names the processor that ended it."""

    stop_reason: StopReason
    stop_sequence: str | None
    logits_processors_finish: Omitted[ProcessorStop] = None


class MessageDelta(Details):
    """The end of the message, and its token counts."""

    type: Literal["message_delta"] = "message_delta"
    delta: StopDelta
    usage: MessageUsage


class MessageStop(BaseModel):
    """The end of the stream."""

    type: Literal["message_stop"] = "message_stop"


BlockEvent = BlockStart | BlockDelta | BlockStop
MessageEvent = MessageStart | Ping | BlockEvent | MessageDelta | MessageStop | MessagesError
