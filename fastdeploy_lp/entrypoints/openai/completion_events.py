"""The events of streamed text completions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fastdeploy_lp.engine.generation import Generation
from fastdeploy_lp.entrypoints.openai.completion_reader import CompletionReader
from fastdeploy_lp.entrypoints.openai.event_stream import TextEvent, server_sent_event
from fastdeploy_lp.entrypoints.openai.protocol.clock import now
from fastdeploy_lp.entrypoints.openai.protocol.completion import (
    CompletionRequest,
    CompletionResponse,
    TextChoice,
)
from fastdeploy_lp.entrypoints.openai.protocol.request import shared_id
from fastdeploy_lp.entrypoints.openai.protocol.usage import Usage
from fastdeploy_lp.entrypoints.openai.serving import Serving, usage_of
from fastdeploy_lp.outputs import CompletionDelta


class CompletionEvents:
    """Encoder of the events, which counts the reported tokens."""

    def __init__(self, serving: Serving, generations: Sequence[Generation], request: CompletionRequest) -> None:
        self._model = serving.model
        self._generations = generations
        self._request = request
        self._created = now()
        self._num_tokens = 0
        n = len(generations[0].completions)
        self._readers = [
            CompletionReader(serving.engine.tokenizer, request, generation.prompt, place * n)
            for place, generation in enumerate(generations)
        ]
        self._text_events = [TextEvent(partial(self._plain, index)) for index in range(n * len(generations))]

    def of(self, place: int, delta: CompletionDelta) -> bytes:
        """Returns the events of a delta for the `place`-th prompt; empty while the delta has to wait."""
        reader = self._readers[place]
        self._num_tokens += reader.num_tokens(delta)
        index = reader.first_index + delta.index
        plain = reader.is_plain(delta.index) and not self._request.continuous_usage
        if plain and delta.finish_reason is None and delta.logprobs is None:
            return self._text_events[index](delta.text)
        chunks = reader.chunks(delta, self._generations[place].prompt_logprobs)
        return b"".join(server_sent_event(self._response([choice])) for choice in chunks)

    def usage(self) -> bytes:
        """Returns the usage event, which has no choices."""
        response = self._response([])
        response.usage = self._usage()
        return server_sent_event(response)

    def _plain(self, index: int, text: str) -> bytes:
        return server_sent_event(self._response([TextChoice(index=index, text=text)]))

    def _response(self, choices: list[TextChoice]) -> CompletionResponse:
        return CompletionResponse(
            id=shared_id(self._generations[0].request_id),
            created=self._created,
            model=self._model,
            choices=choices,
            usage=self._usage() if self._request.continuous_usage else None,
        )

    def _usage(self) -> Usage:
        prompt_tokens = sum(len(generation.prompt.token_ids) for generation in self._generations)
        cached_tokens = sum(generation.num_cached_tokens for generation in self._generations)
        return usage_of(prompt_tokens, self._num_tokens, cached_tokens)
