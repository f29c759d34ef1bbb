"""One completion of a chat: its choice in the answer, whole or chunk by chunk, and the events of a stream."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fastdeploy_lp.engine.client.engine import Engine
from fastdeploy_lp.engine.client.generation import Generation
from fastdeploy_lp.engine.message_parser import Message, MessageDelta
from fastdeploy_lp.engine.tokenizer import TokenEnds
from fastdeploy_lp.entrypoints.openai.json_pieces import PiecedObject, Pieces
from fastdeploy_lp.entrypoints.openai.logprobs import chat_logprobs, chat_logprobs_pieces
from fastdeploy_lp.entrypoints.openai.protocol.chat import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatDelta,
    Function,
    FunctionDelta,
    ToolCall,
    ToolCallDelta,
    new_call_id,
)
from fastdeploy_lp.entrypoints.openai.protocol.model import now
from fastdeploy_lp.entrypoints.openai.protocol.trace import outputs_pieces, shadow_body, trace_body, trace_pieces
from fastdeploy_lp.entrypoints.openai.protocol.usage import Usage
from fastdeploy_lp.entrypoints.openai.serving import Serving, told_reason, usage_of
from fastdeploy_lp.entrypoints.openai.streaming.event_stream import TextEvent, server_sent_event
from fastdeploy_lp.request.outputs import CompletionDelta, CompletionOutput, StopCause


class MessageReader:
    """Reader of one completion; `is_plain` if all of its text is the answer's content.

    `reasoning_tokens` counts the reasoning tokens, markers included.
    """

    def __init__(self, engine: Engine, request: ChatCompletionRequest, index: int) -> None:
        self._tokenizer = engine.tokenizer
        self._request = request
        self._index = index
        parsers = engine.message_parsers
        self._parser = None
        if parsers.parts:
            self._parser = parsers.new(
                tools=request.may_call_tools, parallel=request.parallel_tool_calls, reasoning=request.may_reason
            )
        skipped = request.skip_special_tokens is not False
        self._ends = TokenEnds(engine.tokenizer.decode_stream(skip_special_tokens=skipped))
        self._reads_reasoning = parsers.reads_reasoning
        self._unsent = CompletionOutput(index, "", [])
        # True if text deltas are content deltas, and no other output is requested.
        self.is_plain = self._parser is None and not request.return_token_ids and not request.is_traced

    @property
    def reasoning_tokens(self) -> int:
        """Number of reasoning tokens so far."""
        return 0 if self._parser is None else self._ends.count_before(self._parser.reasoning_length)

    def read(self, completion: CompletionOutput) -> ChatChoice:
        """Returns the choice of a whole completion without its long members, logprobs and trace."""
        self._count(completion.token_ids)
        message = Message(completion.text) if self._parser is None else self._parser.read(completion.text)
        calls = [
            ToolCall(id=new_call_id(), function=Function(name=call.name, arguments=call.arguments))
            for call in message.tool_calls
        ]
        reasoning = message.reasoning_content if self._request.include_reasoning else ""
        return ChatChoice(
            index=completion.index,
            message=AssistantMessage(
                content=None if calls and not message.content else message.content,
                reasoning_content=reasoning or None,
                tool_calls=calls or None,
            ),
            finish_reason=self._finish_reason(completion.finish_reason, completion.stop_reason) or "abort",
            stop_reason=told_reason(completion.stop_reason, self._request),
            token_ids=completion.token_ids if self._request.return_token_ids else None,
            logits_processors_shadow=shadow_body(completion.logits_processors_shadow),
        )

    def choice(self, completion: CompletionOutput) -> PiecedObject:
        """Returns the choice of a whole completion, a `ChatChoice`."""
        members: dict[str, Pieces] = {}
        if completion.logprobs is not None:
            count = self._request.num_logprobs or 0
            members["logprobs"] = chat_logprobs_pieces(completion.logprobs, count, self._tokenizer)
        if completion.logits_processors_trace is not None:
            members["logits_processors_trace"] = trace_pieces(completion.logits_processors_trace)
        if completion.logits_processors_outputs is not None:
            members["logits_processors_outputs"] = outputs_pieces(completion.logits_processors_outputs)
        return PiecedObject(self.read(completion), members)

    def chunk(self, delta: CompletionDelta) -> ChatChunkChoice | None:
        """Returns the chunk of a delta; None while its meaning is undecided, unless it has tokens to report."""
        finished = delta.finish_reason is not None
        message = self._read(delta.text, finished=finished)
        self._count(delta.token_ids)
        self._unsent.extend(delta)
        if not finished and message.is_empty and self._tokenizer.handles_text:
            return None
        unsent, self._unsent = self._unsent, CompletionOutput(self._index, "", [])
        return ChatChunkChoice(
            index=self._index,
            delta=self._delta(message),
            logprobs=chat_logprobs(unsent.logprobs, self._request.num_logprobs or 0, self._tokenizer),
            finish_reason=self._finish_reason(delta.finish_reason, delta.stop_reason),
            stop_reason=told_reason(delta.stop_reason, self._request),
            token_ids=unsent.token_ids if self._request.return_token_ids else None,
            logits_processors_trace=trace_body(unsent.logits_processors_trace),
            logits_processors_shadow=shadow_body(unsent.logits_processors_shadow) if finished else None,
            logits_processors_outputs=unsent.logits_processors_outputs,
        )

    def _count(self, token_ids: list[int]) -> None:
        if self._reads_reasoning:
            self._ends.extend(token_ids)

    def _read(self, text: str, *, finished: bool) -> MessageDelta:
        if self._parser is None:
            return MessageDelta(text)
        message = self._parser.push(text, finished=finished)
        return message if self._request.include_reasoning else replace(message, reasoning_content="")

    def _delta(self, message: MessageDelta) -> ChatDelta:
        calls = [
            ToolCallDelta(
                index=call.index,
                id=new_call_id() if call.name is not None else None,
                type="function" if call.name is not None else None,
                function=FunctionDelta(name=call.name, arguments=call.arguments),
            )
            for call in message.tool_calls
        ]
        other = bool(message.reasoning_content or calls)
        return ChatDelta(
            content=message.content if message.content or not other else None,
            reasoning_content=message.reasoning_content or None,
            tool_calls=calls or None,
        )

    def _finish_reason(self, reason: str | None, stop_reason: StopCause | None) -> str | None:
        called = self._parser is not None and self._parser.called_tools
        # After a processor has ended the answer, the client is not asked to run the calls.
        return "tool_calls" if called and reason == "stop" and not isinstance(stop_reason, dict) else reason


class ChatEvents:
    """Encoder of a chat's events, which counts the reported tokens."""

    def __init__(self, serving: Serving, generation: Generation, request: ChatCompletionRequest) -> None:
        self._serving = serving
        self._generation = generation
        self._request = request
        self._created = now()
        self._num_tokens = 0
        self._counts = request.continuous_usage
        indices = range(len(generation.completions))
        self._readers = [MessageReader(serving.engine, request, index) for index in indices]
        self._text_events = [TextEvent(partial(self._plain, index)) for index in indices]
        self._tells_text = not self._counts and all(reader.is_plain for reader in self._readers)

    def opening(self) -> bytes:
        """Returns one event per choice with its role; the first has the prompt's token ids if requested."""
        role = ChatDelta(role="assistant", content="")
        choices = [ChatChunkChoice(index=index, delta=role) for index in range(len(self._readers))]
        prompt = self._generation.prompt.token_ids if self._request.return_token_ids else None
        chunks = [self._chunk([choice], prompt if choice.index == 0 else None) for choice in choices]
        return b"".join(server_sent_event(chunk) for chunk in chunks)

    def of(self, _place: int, delta: CompletionDelta) -> bytes:
        """Returns the event of a delta; empty while its meaning is undecided."""
        self._num_tokens += len(delta.token_ids)
        if self._tells_text and delta.is_text:
            return self._text_events[delta.index](delta.text)
        choice = self._readers[delta.index].chunk(delta)
        return b"" if choice is None else server_sent_event(self._chunk([choice]))

    def usage(self) -> bytes:
        """Returns the usage event, which has no choices."""
        chunk = self._chunk([])
        chunk.usage = self._usage()
        return server_sent_event(chunk)

    def _plain(self, index: int, text: str) -> bytes:
        return server_sent_event(self._chunk([ChatChunkChoice(index=index, delta=ChatDelta(content=text))]))

    def _chunk(self, choices: list[ChatChunkChoice], prompt_token_ids: list[int] | None = None) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            id=self._generation.request_id,
            created=self._created,
            model=self._serving.model,
            choices=choices,
            usage=self._usage() if self._counts else None,
            prompt_token_ids=prompt_token_ids,
        )

    def _usage(self) -> Usage:
        reasoning = self._serving.engine.message_parsers.reads_reasoning
        return usage_of(
            len(self._generation.prompt.token_ids),
            self._num_tokens,
            self._generation.num_cached_tokens,
            sum(reader.reasoning_tokens for reader in self._readers) if reasoning else None,
            self._generation.drafted,
        )
