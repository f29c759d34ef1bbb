"""Events of a streamed response, as `/openapi.json` declares them; `routes/response_events.py` writes them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from fastdeploy_lp.entrypoints.openai.logprobs import ContentLogprob
from fastdeploy_lp.entrypoints.openai.protocol.request import Omitted
from fastdeploy_lp.entrypoints.openai.protocol.response_items import OutputItem, OutputText, ReasoningText
from fastdeploy_lp.entrypoints.openai.protocol.responses import Response
from fastdeploy_lp.entrypoints.openai.protocol.trace import TokenTraceBody
from fastdeploy_lp.request.outputs import ProcessorOutputs


class NumberedEvent(BaseModel):
    """An event of a stream; numbers begin with 0."""

    model_config = ConfigDict(extra="forbid")

    sequence_number: int


class TokensEvent(NumberedEvent):
    """An event that may report tokens; the last event reports tokens that have no text."""

    logprobs: Omitted[list[ContentLogprob]] = None
    token_ids: Omitted[list[int]] = None
    logits_processors_trace: Omitted[list[TokenTraceBody]] = None
    logits_processors_outputs: Omitted[ProcessorOutputs] = None


class LifecycleEvent(TokensEvent):
    """An event with the response: without output at its beginning, complete at its end."""

    type: Literal[
        "response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed"
    ]
    response: Response


class ItemEvent(NumberedEvent):
    """The beginning of an item, without content, or the whole item."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class PartEvent(NumberedEvent):
    """The beginning of a content part, without text, or the whole part."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    item_id: str
    output_index: int
    content_index: int
    part: OutputText | ReasoningText


class TextDeltaEvent(TokensEvent):
    """A piece of text."""

    type: Literal["response.output_text.delta", "response.reasoning_text.delta"]
    item_id: str
    output_index: int
    content_index: int
    delta: str


class TextDoneEvent(NumberedEvent):
    """A whole text; `logprobs` is empty, since the pieces had them."""

    type: Literal["response.output_text.done", "response.reasoning_text.done"]
    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: Omitted[list[ContentLogprob]] = None


class ArgumentsDeltaEvent(TokensEvent):
    """A piece of a call's arguments."""

    type: Literal["response.function_call_arguments.delta"]
    item_id: str
    output_index: int
    delta: str


class ArgumentsDoneEvent(NumberedEvent):
    """A call's name and arguments."""

    type: Literal["response.function_call_arguments.done"]
    item_id: str
    output_index: int
    name: str
    arguments: str


ResponseEvent = (
    LifecycleEvent | ItemEvent | PartEvent | TextDeltaEvent | TextDoneEvent | ArgumentsDeltaEvent | ArgumentsDoneEvent
)
