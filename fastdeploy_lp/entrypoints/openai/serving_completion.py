"""POST /v1/completions: one or many prompts, each with `n` choices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from fastdeploy_lp.engine.engine_client import EngineClient, EngineRequest
from fastdeploy_lp.engine.generation import Generation
from fastdeploy_lp.engine.input_processor import Prompt
from fastdeploy_lp.entrypoints.openai.completion_events import CompletionEvents
from fastdeploy_lp.entrypoints.openai.completion_reader import CompletionReader
from fastdeploy_lp.entrypoints.openai.errors import describe
from fastdeploy_lp.entrypoints.openai.protocol.completion import (
    CompletionRequest,
    CompletionResponse,
    TextChoice,
    new_completion_id,
    shared_id,
)
from fastdeploy_lp.entrypoints.openai.protocol.error import ErrorResponse
from fastdeploy_lp.entrypoints.openai.serving import (
    DONE,
    Serving,
    server_sent_event,
    usage_of,
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
        prompts = [inputs.prompt(prompt, path) for path, prompt in _prompts(request)]
        settled = [self._serving.settle(prompt, params, request) for prompt in prompts]
        request_id = new_completion_id(request.request_id)
        requests = [
            EngineRequest(f"{request_id}-{index}", prompt, each)
            for index, (prompt, each) in enumerate(zip(prompts, settled, strict=True))
        ]
        return await self._serving.engine.generate(requests, stream=request.stream)

    def response(self, outputs: Sequence[RequestOutput], request: CompletionRequest) -> CompletionResponse:
        """The body of a plain answer; candidates that were not chosen count in its usage."""
        choices: list[TextChoice] = []
        completion_tokens = 0
        for output in outputs:
            prompt = Prompt(output.prompt_token_ids, output.prompt)
            reader = CompletionReader(self._serving.engine.tokenizer, request, prompt, len(choices))
            choices += reader.choices(output)
            completion_tokens += sum(map(reader.num_tokens, output.completions))
        prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
        cached_tokens = sum(output.num_cached_tokens for output in outputs)
        return CompletionResponse(
            id=shared_id(outputs[0].request_id),
            model=self._serving.model,
            choices=choices,
            usage=usage_of(prompt_tokens, completion_tokens, cached_tokens),
        )

    async def stream(self, generations: Sequence[Generation], request: CompletionRequest) -> AsyncIterator[str]:
        """Server-sent events of all prompts as they come, usage if asked for, and [DONE]."""
        try:
            events = CompletionEvents(self._serving, generations, request)
            async with aclosing(_merged(generations)) as deltas:
                async for place, delta in deltas:
                    if event := events.of(place, delta):
                        yield event
            if request.include_usage:
                yield events.usage()
        except Exception as error:  # noqa: BLE001 - the status line is sent; an event is the only way left to tell
            yield server_sent_event(ErrorResponse(error=describe(error)[1]))
        finally:
            for generation in generations:
                generation.close()
        yield DONE


async def _merged(generations: Sequence[Generation]) -> AsyncGenerator[tuple[int, CompletionDelta], None]:
    """Deltas of all generations as they come, each with the place of its prompt."""
    # One place: a slow reader holds back its own request's deltas, which merge while they wait.
    queue: asyncio.Queue[tuple[int, CompletionDelta] | None] = asyncio.Queue(maxsize=1)

    async def forward(generation: Generation, place: int) -> None:
        async with aclosing(generation.deltas()) as deltas:
            async for delta in deltas:
                await queue.put((place, delta))

    async def forward_all() -> None:
        try:
            await asyncio.gather(*readers)
        finally:
            await queue.put(None)

    readers = [asyncio.ensure_future(forward(each, place)) for place, each in enumerate(generations)]
    everyone = asyncio.ensure_future(forward_all())
    try:
        while (item := await queue.get()) is not None:
            yield item
        await everyone
    finally:
        for task in (*readers, everyone):
            task.cancel()
        await asyncio.gather(*readers, everyone, return_exceptions=True)


def _prompts(request: CompletionRequest) -> list[tuple[str, str | list[int]]]:
    """Each prompt with its path in the body."""
    name = "prompt" if request.prompt_token_ids is None else "prompt_token_ids"
    given: Sequence[int | str | list[int]] = request.prompt if isinstance(request.prompt, list) else [request.prompt]
    tokens = [token for token in given if isinstance(token, int)]
    if tokens:
        return [(name, tokens)]
    paths = [f"{name}.{index}" if isinstance(request.prompt, list) else name for index in range(len(given))]
    return [(path, prompt) for path, prompt in zip(paths, given, strict=True) if not isinstance(prompt, int)]
