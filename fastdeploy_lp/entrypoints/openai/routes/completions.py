"""POST /v1/completions: one or many prompts, each with `n` choices."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from fastdeploy_lp.engine.client.engine import Engine
from fastdeploy_lp.engine.client.generation import Generation
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.prepare.input_processor import EngineRequest, Prompt
from fastdeploy_lp.engine.prepare.preparation import prompt_logprobs_bytes
from fastdeploy_lp.entrypoints.openai.json_pieces import PiecedObject, array
from fastdeploy_lp.entrypoints.openai.protocol.completion import (
    CompletionRequest,
    CompletionResponse,
    new_completion_id,
)
from fastdeploy_lp.entrypoints.openai.protocol.request import shared_id
from fastdeploy_lp.entrypoints.openai.serving import (
    FEW_TOKENS,
    Caller,
    Serving,
    each_prompt,
    num_prompts,
    usage_of,
)
from fastdeploy_lp.entrypoints.openai.streaming.completions import CompletionEvents, CompletionReader
from fastdeploy_lp.entrypoints.openai.streaming.event_stream import DONE
from fastdeploy_lp.entrypoints.openai.streaming.event_writer import EventWriter
from fastdeploy_lp.request.limits import MAX_SEQUENCES
from fastdeploy_lp.request.outputs import NO_DRAFTS, RequestOutput
from fastdeploy_lp.request.sampling_params import SamplingParams


class ServingCompletion:
    """Text completions on one engine; choice `p * n + i` is the i-th completion of prompt p."""

    def __init__(self, engine: Engine) -> None:
        self._serving = Serving(engine)

    async def start(self, request: CompletionRequest, caller: Caller) -> list[Generation]:
        """Admits every prompt of a request, or none; raises the errors of `ServingChat.start`."""
        engine, inside = self._serving.engine, self._serving.inside(caller, num_prompts(request.prompt))
        params, given = await inside(partial(self._asked, request))
        engine.require_room(len(given) * params.n, caller.client)
        prompts = await inside(lambda: [engine.inputs.prompt(prompt, path) for path, prompt in given])
        settled = await self._serving.settle(prompts, params, request, caller)
        engine.inputs.require_traceable(settled)
        request_id = new_completion_id(request.request_id)
        requests = [
            EngineRequest(f"{request_id}-{index}", prompt, each, caller.client, caller.deadline)
            for index, (prompt, each) in enumerate(zip(prompts, settled, strict=True))
        ]
        caller.hold(prompt_logprobs_bytes(requests, request.prompt_logprobs_field))
        return await engine.generate(requests, stream=request.stream)

    def _asked(self, request: CompletionRequest) -> tuple[SamplingParams, list[tuple[str, str | list[int]]]]:
        """Returns the parameters, and each prompt with its path, after checking the limits of a request."""
        params = self._serving.params(request)
        inputs = self._serving.engine.inputs
        if request.echo:
            inputs.require_text("echo")
        field = "prompt" if request.prompt_token_ids is None else "prompt_token_ids"
        given = each_prompt(field, request.prompt)
        if len(given) * params.n > MAX_SEQUENCES:
            reason = f"{len(given)} prompts with {params.n} completions each are too many; {MAX_SEQUENCES} may be"
            raise InvalidRequestError(field, reason)
        self._serving.require_few_values(params, len(given), request)
        return params, given

    def response(self, outputs: Sequence[RequestOutput], request: CompletionRequest) -> PiecedObject:
        """Returns the body of a plain answer, a `CompletionResponse`; usage includes candidates not chosen."""
        choices: list[PiecedObject] = []
        completion_tokens = 0
        for output in outputs:
            prompt = Prompt(output.prompt_token_ids, output.prompt)
            reader = CompletionReader(self._serving.engine.tokenizer, request, prompt, len(choices))
            choices += reader.choices(output)
            completion_tokens += sum(map(reader.num_tokens, output.completions))
        prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
        cached_tokens = sum(output.num_cached_tokens for output in outputs)
        drafted = sum((output.drafted for output in outputs), NO_DRAFTS)
        response = CompletionResponse(
            id=shared_id(outputs[0].request_id),
            model=self._serving.model,
            choices=[],
            usage=usage_of(prompt_tokens, completion_tokens, cached_tokens, drafted=drafted),
        )
        return PiecedObject(response, {"choices": array(choices)})

    async def stream(self, generations: Sequence[Generation], request: CompletionRequest, out: EventWriter) -> None:
        """Sends events of all prompts as they arrive, usage if requested, and [DONE]; raises the first error."""
        made = partial(CompletionEvents, self._serving, generations, request)
        # Echoed prompts are decoded token by token.
        long = request.echo and sum(len(each.prompt.token_ids) for each in generations) > FEW_TOKENS
        events = await asyncio.to_thread(made) if long else made()
        await out.send_deltas(generations, events.of)
        await out.send(events.usage() + DONE if request.include_usage else DONE)
