"""POST /v1/completions: one or many prompts, each with `n` choices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial

from fastdeploy_lp.engine.engine_client import EngineClient, EngineRequest
from fastdeploy_lp.engine.generation import Generation
from fastdeploy_lp.entrypoints.openai.errors import describe
from fastdeploy_lp.entrypoints.openai.event_stream import DONE, TextEvent, server_sent_event
from fastdeploy_lp.entrypoints.openai.logprobs import completion_logprobs, prompt_logprobs
from fastdeploy_lp.entrypoints.openai.protocol.clock import now
from fastdeploy_lp.entrypoints.openai.protocol.completion import (
    CompletionRequest,
    CompletionResponse,
    TextChoice,
    new_completion_id,
)
from fastdeploy_lp.entrypoints.openai.protocol.error import ErrorResponse
from fastdeploy_lp.entrypoints.openai.protocol.usage import Usage
from fastdeploy_lp.entrypoints.openai.serving import (
    Serving,
    each_prompt,
    text_reason,
    usage_of,
    usage_of_outputs,
)
from fastdeploy_lp.outputs import CompletionDelta, RequestOutput


class ServingCompletion:
    """Text completions on one engine; choice `p * n + i` is the i-th completion of prompt p."""

    def __init__(self, engine: EngineClient) -> None:
        self._serving = Serving(engine)

    async def start(self, request: CompletionRequest) -> list[Generation]:
        """Admit every prompt of a request, or none; raises as `ServingChat.start` does."""
        params = self._serving.params(request)
        inputs = self._serving.engine.inputs
        prompts = [inputs.prompt(prompt, path) for path, prompt in each_prompt("prompt", request.prompt)]
        settled = [self._serving.settle(prompt, params, request) for prompt in prompts]
        request_id = new_completion_id()
        requests = [
            EngineRequest(f"{request_id}-{index}", prompt, each)
            for index, (prompt, each) in enumerate(zip(prompts, settled, strict=True))
        ]
        return await self._serving.engine.generate(requests, stream=request.stream)

    def response(self, outputs: Sequence[RequestOutput]) -> CompletionResponse:
        """The body of a plain answer."""
        choices = [
            TextChoice(
                index=index,
                text=completion.text,
                logprobs=completion_logprobs(completion.logprobs, completion.text_offsets),
                finish_reason=completion.finish_reason,
                stop_reason=text_reason(completion.stop_reason),
                prompt_logprobs=prompt_logprobs(output.prompt_logprobs),
            )
            for index, (output, completion) in enumerate((o, each) for o in outputs for each in o.completions)
        ]
        return CompletionResponse(
            id=_shared_id(outputs[0].request_id),
            model=self._serving.model,
            choices=choices,
            usage=usage_of_outputs(outputs),
        )

    async def stream(self, generations: Sequence[Generation], *, include_usage: bool) -> AsyncGenerator[bytes, None]:
        """Server-sent events of all prompts as they come, usage if asked for, and [DONE]."""
        try:
            events = _TextEvents(self._serving.model, generations)
            completion_tokens = 0
            async with aclosing(_merged(generations)) as batches:
                async for first_index, deltas in batches:
                    completion_tokens += sum(len(delta.token_ids) for delta in deltas)
                    yield b"".join([events.of(first_index + delta.index, delta) for delta in deltas])
            if include_usage:
                yield events.usage(completion_tokens)
        except Exception as error:  # noqa: BLE001 - the status line is sent; an event is the only way left to tell
            yield server_sent_event(ErrorResponse(error=describe(error)[1]))
        finally:
            for generation in generations:
                generation.close()
        yield DONE


class _TextEvents:
    """Encodes the events of one stream."""

    def __init__(self, model: str, generations: Sequence[Generation]) -> None:
        self._model = model
        self._generations = generations
        self._created = now()
        count = sum(len(generation.completions) for generation in generations)
        self._text_events = [TextEvent(partial(self._plain, index)) for index in range(count)]

    def of(self, index: int, delta: CompletionDelta) -> bytes:
        """What the choice of this index gained."""
        if delta.finish_reason is None and delta.logprobs is None:
            return self._text_events[index](delta.text)
        choice = TextChoice(
            index=index,
            text=delta.text,
            logprobs=completion_logprobs(delta.logprobs, delta.text_offsets),
            finish_reason=delta.finish_reason,
            stop_reason=text_reason(delta.stop_reason),
        )
        return self._event(choice)

    def usage(self, completion_tokens: int) -> bytes:
        """The event that has no choices."""
        prompt_tokens = sum(len(generation.prompt.token_ids) for generation in self._generations)
        cached_tokens = sum(generation.num_cached_tokens for generation in self._generations)
        usage = usage_of(prompt_tokens, completion_tokens, cached_tokens)
        return server_sent_event(self._response(choices=[], usage=usage))

    def _plain(self, index: int, text: str) -> bytes:
        return self._event(TextChoice(index=index, text=text))

    def _event(self, choice: TextChoice) -> bytes:
        return server_sent_event(self._response(choices=[choice]), without={"usage"})

    def _response(self, choices: list[TextChoice], usage: Usage | None = None) -> CompletionResponse:
        return CompletionResponse(
            id=_shared_id(self._generations[0].request_id),
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage,
        )


async def _merged(
    generations: Sequence[Generation],
) -> AsyncGenerator[tuple[int, list[CompletionDelta]], None]:
    """Deltas of all generations as they come, with the index of their prompt's first choice."""
    # One place: a slow reader holds back its own request's deltas, which merge while they wait.
    queue: asyncio.Queue[tuple[int, list[CompletionDelta]] | None] = asyncio.Queue(maxsize=1)

    async def forward(generation: Generation, first_index: int) -> None:
        async with aclosing(generation.deltas()) as batches:
            async for deltas in batches:
                await queue.put((first_index, deltas))

    async def forward_all() -> None:
        try:
            await asyncio.gather(*readers)
        finally:
            await queue.put(None)

    count = len(generations[0].completions)
    readers = [asyncio.ensure_future(forward(each, index * count)) for index, each in enumerate(generations)]
    everyone = asyncio.ensure_future(forward_all())
    try:
        while (item := await queue.get()) is not None:
            yield item
        await everyone
    finally:
        for task in (*readers, everyone):
            task.cancel()
        await asyncio.gather(*readers, everyone, return_exceptions=True)


def _shared_id(request_id: str) -> str:
    return request_id.rpartition("-")[0]
