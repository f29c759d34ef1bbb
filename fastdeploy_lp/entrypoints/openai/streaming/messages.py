"""Answers of the Messages API, from the choice of a chat completion: whole, or as events of a stream."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic_core import from_json

from fastdeploy_lp.engine.client.generation import Generation
from fastdeploy_lp.entrypoints.openai.protocol.anthropic.answer import (
    ContentBlock,
    Details,
    MessageResponse,
    MessageUsage,
    StopReason,
    Text,
    ThinkingText,
    ToolUse,
)
from fastdeploy_lp.entrypoints.openai.protocol.anthropic.events import (
    BlockDelta,
    BlockEvent,
    BlockStart,
    BlockStop,
    InputDelta,
    MessageDelta,
    MessageEvent,
    MessageStart,
    MessageStop,
    Ping,
    SignatureDelta,
    StopDelta,
    TextDelta,
    ThinkingDelta,
)
from fastdeploy_lp.entrypoints.openai.protocol.chat import (
    AssistantMessage,
    ChatChunkChoice,
    ChatCompletionRequest,
    ChatDelta,
)
from fastdeploy_lp.entrypoints.openai.serving import Serving
from fastdeploy_lp.entrypoints.openai.streaming.chat import MessageReader
from fastdeploy_lp.entrypoints.openai.streaming.event_stream import TextEvent
from fastdeploy_lp.request.outputs import CompletionDelta, StopCause, joined_outputs

STOP_REASONS: dict[str, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "abort": "abort",
}


def named_event(event: MessageEvent) -> bytes:
    """Returns one encoded event, with its type as its name."""
    return f"event: {event.type}\ndata: {event.model_dump_json()}\n\n".encode()


def stop_of(serving: Serving, finish_reason: str, stop_reason: StopCause | None) -> StopDelta:
    """Returns why a message ended; a token of `stop_token_ids` is reported by its text, a processor by its name."""
    if isinstance(stop_reason, dict):
        return StopDelta(stop_reason="end_turn", stop_sequence=None, logits_processors_finish=stop_reason)
    if stop_reason is not None and finish_reason == "stop":
        text = stop_reason if isinstance(stop_reason, str) else serving.engine.tokenizer.token_text(stop_reason)
        return StopDelta(stop_reason="stop_sequence", stop_sequence=text)
    return StopDelta(stop_reason=STOP_REASONS[finish_reason], stop_sequence=None)


def blocks_of(message: AssistantMessage, signature: str, *, shows_thinking: bool) -> list[ContentBlock]:
    """Returns the blocks of a whole message: reasoning, text and calls."""
    blocks: list[ContentBlock] = []
    if message.reasoning_content:
        thinking = message.reasoning_content if shows_thinking else ""
        blocks.append(ThinkingText(thinking=thinking, signature=signature))
    if message.content:
        blocks.append(Text(text=message.content))
    for call in message.tool_calls or []:
        name = call.function.name
        blocks.append(ToolUse(id=tool_use_id(call.id), name=name, input=input_of(call.function.arguments)))
    return blocks


def input_of(arguments: str) -> dict[str, Any]:
    """Returns the object that the model wrote; of JSON that the token limit cut, the members before the cut."""
    try:
        read = from_json(arguments, allow_inf_nan=False, allow_partial=True)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def tool_use_id(call_id: str) -> str:
    """Returns the id of a call in the form of the Messages API."""
    return f"toolu_{call_id.removeprefix('call_')}"


class OpenBlocks:
    """The blocks of a streamed message: each delta belongs to the last one, or begins another one."""

    def __init__(self, signature: str, *, shows_thinking: bool) -> None:
        self._signature = signature
        self._shows_thinking = shows_thinking
        self._open: str | None = None
        self.index = -1

    @property
    def in_text(self) -> bool:
        """True if more text belongs to the last block."""
        return self._open == "text"

    def of(self, delta: ChatDelta) -> list[BlockEvent]:
        """Returns the events of a delta."""
        events: list[BlockEvent] = []
        if delta.reasoning_content:
            if self._open != "thinking":
                events += self._begin(ThinkingText(thinking="", signature=""))
            if self._shows_thinking:
                events.append(self._delta(ThinkingDelta(thinking=delta.reasoning_content)))
        if delta.content:
            if not self.in_text:
                events += self._begin(Text(text=""))
            events.append(self._delta(TextDelta(text=delta.content)))
        for call in delta.tool_calls or []:
            if call.id is not None:
                events += self._begin(ToolUse(id=tool_use_id(call.id), name=call.function.name or "", input={}))
            if call.function.arguments:
                events.append(self._delta(InputDelta(partial_json=call.function.arguments)))
        return events

    def end(self) -> list[BlockEvent]:
        """Returns the events that end the last block, if there is one."""
        if self._open is None:
            return []
        signed = [self._delta(SignatureDelta(signature=self._signature))] if self._open == "thinking" else []
        self._open = None
        return [*signed, BlockStop(index=self.index)]

    def _begin(self, block: ContentBlock) -> list[BlockEvent]:
        ended = self.end()
        self.index += 1
        self._open = block.type
        return [*ended, BlockStart(index=self.index, content_block=block)]

    def _delta(self, delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta) -> BlockDelta:
        return BlockDelta(index=self.index, delta=delta)


class MessageEvents:
    """Encoder of the events of a streamed message, which counts the reported tokens."""

    def __init__(
        self,
        serving: Serving,
        generation: Generation,
        request: ChatCompletionRequest,
        message_id: str,
        *,
        shows_thinking: bool = True,
    ) -> None:
        self._serving = serving
        self._generation = generation
        self._request = request
        self._message_id = message_id
        self._num_tokens = 0
        self._reader = MessageReader(serving.engine, request, 0)
        self._blocks = OpenBlocks(message_id, shows_thinking=shows_thinking)
        self._text_event: tuple[int, TextEvent] | None = None
        self._unsent = Details()

    def opening(self) -> bytes:
        """Returns the event of the empty message, which has the prompt's token ids if requested, and a ping."""
        prompt = self._generation.prompt.token_ids
        message = MessageResponse(
            id=self._message_id,
            model=self._serving.model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=self._usage(),
            prompt_token_ids=prompt if self._request.return_token_ids else None,
        )
        return named_event(MessageStart(message=message)) + named_event(Ping())

    def of(self, _place: int, delta: CompletionDelta) -> bytes:
        """Returns the events of a delta; empty while its meaning is undecided."""
        self._num_tokens += len(delta.token_ids)
        if self._reader.is_plain and delta.is_text and self._blocks.in_text:
            return self._plain(delta.text) if delta.text else b""
        choice = self._reader.chunk(delta)
        return b"" if choice is None else self._of_choice(choice)

    def _of_choice(self, choice: ChatChunkChoice) -> bytes:
        events: list[BlockEvent | MessageDelta] = [*self._blocks.of(choice.delta)]
        if choice.finish_reason is not None:
            stop = stop_of(self._serving, choice.finish_reason, choice.stop_reason)
            events += [*self._blocks.end(), MessageDelta(delta=stop, usage=self._usage())]
        self._tell_details(choice, events)
        encoded = b"".join(named_event(event) for event in events)
        return encoded if choice.finish_reason is None else encoded + named_event(MessageStop())

    def _tell_details(self, choice: ChatChunkChoice, events: list[BlockEvent | MessageDelta]) -> None:
        """Adds the details of the choice's tokens to the last event; without an event, they wait for the next one."""
        unsent = self._unsent
        if choice.token_ids:
            unsent.token_ids = [*(unsent.token_ids or []), *choice.token_ids]
        if choice.logits_processors_trace:
            traced = [*(unsent.logits_processors_trace or []), *choice.logits_processors_trace]
            unsent.logits_processors_trace = traced
        unsent.logits_processors_shadow = choice.logits_processors_shadow
        unsent.logits_processors_outputs = joined_outputs(
            unsent.logits_processors_outputs, choice.logits_processors_outputs
        )
        if events:
            for name in Details.model_fields:
                setattr(events[-1], name, getattr(unsent, name))
            self._unsent = Details()

    def _plain(self, text: str) -> bytes:
        """Returns the event of more text; all but the text is encoded once a block."""
        index = self._blocks.index
        if self._text_event is None or self._text_event[0] != index:
            self._text_event = (index, TextEvent(partial(self._text_delta, index)))
        return self._text_event[1](text)

    def _text_delta(self, index: int, text: str) -> bytes:
        return named_event(BlockDelta(index=index, delta=TextDelta(text=text)))

    def _usage(self) -> MessageUsage:
        reads = self._serving.engine.message_parsers.reads_reasoning
        return MessageUsage.of(
            len(self._generation.prompt.token_ids),
            self._generation.num_cached_tokens,
            self._num_tokens,
            self._reader.reasoning_tokens if reads else None,
        )
