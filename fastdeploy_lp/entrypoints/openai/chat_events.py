"""The events of one streamed chat."""

from __future__ import annotations

from functools import partial

from fastdeploy_lp.engine.generation import Generation
from fastdeploy_lp.entrypoints.openai.event_stream import TextEvent, server_sent_event
from fastdeploy_lp.entrypoints.openai.message_reader import MessageReader
from fastdeploy_lp.entrypoints.openai.protocol.chat import (
    ChatChunkChoice,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatDelta,
)
from fastdeploy_lp.entrypoints.openai.protocol.clock import now
from fastdeploy_lp.entrypoints.openai.protocol.usage import Usage
from fastdeploy_lp.entrypoints.openai.serving import Serving, usage_of
from fastdeploy_lp.outputs import CompletionDelta


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

    def opening(self) -> bytes:
        """Returns one event per choice with its role; the first has the prompt's token ids if requested."""
        role = ChatDelta(role="assistant", content="")
        choices = [ChatChunkChoice(index=index, delta=role) for index in range(len(self._readers))]
        prompt = self._generation.prompt.token_ids if self._request.return_token_ids else None
        chunks = [self._chunk([choice], prompt if choice.index == 0 else None) for choice in choices]
        return b"".join(server_sent_event(chunk) for chunk in chunks)

    def of(self, delta: CompletionDelta) -> bytes:
        """Returns the event of a delta; empty while its meaning is undecided."""
        self._num_tokens += len(delta.token_ids)
        reader = self._readers[delta.index]
        if reader.is_plain and delta.finish_reason is None and delta.logprobs is None and not self._counts:
            return self._text_events[delta.index](delta.text)
        choice = reader.chunk(delta)
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
        )
