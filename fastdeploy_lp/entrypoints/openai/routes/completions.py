"""POST /v1/completions: one or many prompts, each with `n` choices, whole or chunk by chunk, and echoed prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from fastdeploy_lp.engine.client.engine import Engine
from fastdeploy_lp.engine.client.generation import Generation
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.prepare.input_processor import EngineRequest, Prompt
from fastdeploy_lp.engine.prepare.preparation import prompt_logprobs_bytes
from fastdeploy_lp.engine.tokenizer import Tokenizer, id_as_text
from fastdeploy_lp.entrypoints.openai.errors import CLIENT_CLOSED_REQUEST
from fastdeploy_lp.entrypoints.openai.json_pieces import PiecedObject, Pieces, array
from fastdeploy_lp.entrypoints.openai.logprobs import (
    CompletionLogprobs,
    Positions,
    completion_logprobs,
    completion_logprobs_pieces,
    named,
    prompt_logprobs_pieces,
    shown,
    with_ids,
)
from fastdeploy_lp.entrypoints.openai.middleware.request_record import RequestsInFlight, record_of
from fastdeploy_lp.entrypoints.openai.openapi import failures
from fastdeploy_lp.entrypoints.openai.protocol.completion import (
    CompletionRequest,
    CompletionResponse,
    TextChoice,
    new_completion_id,
)
from fastdeploy_lp.entrypoints.openai.protocol.request import now, shared_id
from fastdeploy_lp.entrypoints.openai.protocol.trace import outputs_pieces, shadow_body, trace_body, trace_pieces
from fastdeploy_lp.entrypoints.openai.protocol.usage import Usage
from fastdeploy_lp.entrypoints.openai.serving import (
    FEW_TOKENS,
    Caller,
    Serving,
    admitted,
    each_prompt,
    num_prompts,
    results_unless_disconnected,
    told_reason,
    usage_of,
)
from fastdeploy_lp.entrypoints.openai.streaming.event_stream import (
    DONE,
    EventStream,
    EventWriter,
    StreamWatch,
    TextEvent,
    failed_events,
    server_sent_event,
)
from fastdeploy_lp.entrypoints.openai.streaming.pieced_answer import EncodingTurns, PiecedAnswer
from fastdeploy_lp.request.limits import MAX_SEQUENCES
from fastdeploy_lp.request.outputs import NO_DRAFTS, CompletionDelta, CompletionOutput, Logprob, RequestOutput
from fastdeploy_lp.request.sampling_params import SamplingParams
from fastdeploy_lp.request.trace import TokenTrace

PromptPositions = Sequence[dict[int, Logprob] | None]


@dataclass(frozen=True)
class Echo:
    """The prompt's text, its tokens, and the offset of each token in the text; `by_id`: tokens are shown as ids."""

    text: str
    tokens: list[str]
    offsets: list[int]
    by_id: bool = False

    @classmethod
    def of(cls, prompt: Prompt, tokenizer: Tokenizer, request: CompletionRequest) -> Echo:
        """Returns the echo of a prompt: its text as received, or its decoded token ids."""
        skip_special_tokens = request.skip_special_tokens is not False
        decoder, offsets, length = tokenizer.decode_stream(skip_special_tokens=skip_special_tokens), [], 0
        for token in prompt.token_ids:
            offsets.append(length)
            length += len(decoder.push(token))
        text = prompt.text
        if text is None:
            text = tokenizer.decode(prompt.token_ids, skip_special_tokens=skip_special_tokens)
        by_id = bool(request.return_tokens_as_token_ids)
        tokens = list(map(id_as_text if by_id else tokenizer.token_text, prompt.token_ids))
        return cls(text, tokens, [min(offset, len(text)) for offset in offsets], by_id)

    def logprobs(self, positions: PromptPositions, count: int) -> CompletionLogprobs:
        """Returns the prompt's logprobs, each with the `count` most likely tokens; the first token has none."""
        first = CompletionLogprobs(
            tokens=self.tokens[:1], token_logprobs=[None], top_logprobs=[None], text_offset=self.offsets[:1]
        )
        known = [self._most_likely(position, count) for position in positions if position is not None]
        return first.followed_by(completion_logprobs(known, self.offsets[1:]))

    def entries(self, positions: PromptPositions, count: int) -> Iterator[tuple[str, dict[int, Logprob] | None]]:
        """Yields each token's text and its logprobs; only the first token if `positions` is empty."""
        for token, position in zip(self.tokens, positions or [None], strict=False):
            yield token, None if position is None else self._most_likely(position, count)

    def _most_likely(self, position: dict[int, Logprob], count: int) -> dict[int, Logprob]:
        found = most_likely(position, count)
        return with_ids(found) if self.by_id else found

    def shifted(self, logprobs: CompletionLogprobs) -> CompletionLogprobs:
        """Returns a completion's logprobs with offsets into the prompt and the completion together."""
        moved = [offset + len(self.text) for offset in logprobs.text_offset]
        return logprobs.model_copy(update={"text_offset": moved})


def most_likely(position: dict[int, Logprob], count: int) -> dict[int, Logprob]:
    """Returns the actual token at the position, and the other tokens of rank `count` or better."""
    (own, *others) = position.items()
    return dict([own, *((token, logprob) for token, logprob in others if logprob.rank <= count)])


def best_of(candidates: Sequence[CompletionOutput], count: int) -> list[CompletionOutput]:
    """Returns the `count` candidates with the highest log probability per token, best first and renumbered.

    Ties keep their order. Candidates without tokens or logprobs rank last.
    """
    ranked = sorted(candidates, key=_mean_logprob, reverse=True)
    return [replace(candidate, index=index) for index, candidate in enumerate(ranked[:count])]


def _mean_logprob(candidate: CompletionOutput) -> float:
    if candidate.cumulative_logprob is None or not candidate.token_ids:
        return float("-inf")
    return candidate.cumulative_logprob / len(candidate.token_ids)


Gained = TypeVar("Gained", CompletionDelta, CompletionOutput)


class CompletionReader:
    """Reader of one prompt's completions, whose choices are numbered from `first_index`."""

    def __init__(self, tokenizer: Tokenizer, request: CompletionRequest, prompt: Prompt, first_index: int) -> None:
        self._request = request
        self._prompt = prompt
        self.first_index = first_index
        self._asks_for_text = not request.return_token_ids and not request.is_traced
        self._begun: set[int] = set()
        # Deltas that arrived before the prompt's logprobs, which precede them in the answer.
        self._waiting: list[CompletionDelta] = []
        self._echo = Echo.of(prompt, tokenizer, request) if request.echo else None

    def is_plain(self, index: int) -> bool:
        """Returns True if further text deltas of the completion carry only text."""
        return self._asks_for_text and (self._echo is None or index in self._begun)

    def choices(self, output: RequestOutput) -> list[PiecedObject]:
        """Returns the choices of whole completions, each a `TextChoice`."""
        found = output.completions
        if self._request.chooses:
            found = best_of(found, self._request.n or 1)
        return [self._pieced_choice(each, output.prompt_logprobs) for each in found]

    def num_tokens(self, gained: CompletionDelta | CompletionOutput) -> int:
        """Returns the number of output tokens to report."""
        return 0 if self._request.only_echoes else len(gained.token_ids)

    def chunks(self, delta: CompletionDelta, positions: PromptPositions | None) -> Iterator[TextChoice]:
        """Yields the choices of a delta and of earlier deltas that waited for the prompt's logprobs.

        positions: the prompt's logprobs; None until they arrive.
        """
        self._waiting.append(delta)
        # A completion aborted before its prompt was computed ends without prompt logprobs.
        awaited = self._echo is not None and self._request.logprobs is not None and positions is None
        if awaited and delta.finish_reason is None:
            return
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            yield self._choice(each, positions, with_prompt=each.index not in self._begun)
            self._begun.add(each.index)

    def _choice(self, gained: Gained, positions: PromptPositions | None, *, with_prompt: bool) -> TextChoice:
        if self._request.only_echoes:
            gained = _nothing(gained)
        choice = self._short_choice(gained, with_prompt=with_prompt)
        choice.logprobs = self._logprobs(gained, positions, with_prompt=with_prompt)
        choice.logits_processors_trace = trace_body(gained.logits_processors_trace)
        choice.logits_processors_outputs = gained.logits_processors_outputs
        return choice

    def _pieced_choice(self, completion: CompletionOutput, positions: PromptPositions | None) -> PiecedObject:
        if self._request.only_echoes:
            completion = _nothing(completion)
        members: dict[str, Pieces] = {}
        if self._request.logprobs is not None and completion.logprobs is not None:
            members["logprobs"] = self._logprobs_pieces(completion, completion.logprobs, positions)
        if self._request.prompt_logprobs is not None and positions is not None:
            members["prompt_logprobs"] = self._prompt_logprobs_pieces(positions, self._request.prompt_logprobs)
        if completion.logits_processors_trace is not None:
            members["logits_processors_trace"] = trace_pieces(completion.logits_processors_trace)
        if completion.logits_processors_outputs is not None:
            members["logits_processors_outputs"] = outputs_pieces(completion.logits_processors_outputs)
        return PiecedObject(self._short_choice(completion, with_prompt=True), members)

    def _short_choice(self, gained: CompletionDelta | CompletionOutput, *, with_prompt: bool) -> TextChoice:
        echoed = self._echo.text if self._echo is not None and with_prompt else ""
        return TextChoice(
            index=self.first_index + gained.index,
            text=echoed + gained.text,
            finish_reason=gained.finish_reason,
            stop_reason=told_reason(gained.stop_reason, self._request),
            prompt_token_ids=self._prompt.token_ids if self._request.return_token_ids and with_prompt else None,
            token_ids=gained.token_ids if self._request.return_token_ids else None,
            logits_processors_shadow=shadow_body(gained.logits_processors_shadow) if gained.finish_reason else None,
        )

    def _logprobs(
        self, gained: CompletionDelta | CompletionOutput, positions: PromptPositions | None, *, with_prompt: bool
    ) -> CompletionLogprobs | None:
        count = self._request.logprobs
        if count is None or gained.logprobs is None:
            return None
        own = completion_logprobs(self._shown(gained.logprobs), gained.text_offsets)
        if self._echo is None:
            return own
        own = self._echo.shifted(own)
        return self._echo.logprobs(positions or [], count).followed_by(own) if with_prompt else own

    def _logprobs_pieces(
        self, completion: CompletionOutput, logprobs: Positions, positions: PromptPositions | None
    ) -> Pieces:
        own = named(self._shown(logprobs))
        if self._echo is None:
            return completion_logprobs_pieces(own, completion.text_offsets)
        prompt = self._echo.entries(positions or (), self._request.logprobs or 0)
        # Without positions, only the first token is listed.
        offsets = self._echo.offsets[: len(positions or (None,))]
        shifted = [offset + len(self._echo.text) for offset in completion.text_offsets]
        return completion_logprobs_pieces(chain(prompt, own), [*offsets, *shifted])

    def _shown(self, positions: Positions) -> Positions:
        return shown(positions, by_id=self._request.return_tokens_as_token_ids)

    @staticmethod
    def _prompt_logprobs_pieces(positions: PromptPositions, count: int) -> Pieces:
        """Returns the `count` most likely per position: with echo, `positions` may hold more than requested."""
        return prompt_logprobs_pieces(None if each is None else most_likely(each, count) for each in positions)


def _nothing(gained: Gained) -> Gained:
    """Returns an empty completion: for an echo-only request, the engine samples one token, which is dropped."""
    logprobs = None if gained.logprobs is None else list[dict[int, Logprob]]()
    reason = gained.finish_reason and "length"
    trace = None if gained.logits_processors_trace is None else list[TokenTrace]()
    return replace(
        gained,
        text="",
        token_ids=[],
        logprobs=logprobs,
        text_offsets=[],
        finish_reason=reason,
        stop_reason=None,
        logits_processors_trace=trace,
        logits_processors_shadow=None,
        logits_processors_outputs=None,
    )


class CompletionEvents:
    """Encoder of the events, which counts the reported tokens."""

    def __init__(self, serving: Serving, generations: Sequence[Generation], request: CompletionRequest) -> None:
        self._model = serving.model
        self._generations = generations
        self._request = request
        self._counts = request.continuous_usage
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
        plain = not self._counts and reader.is_plain(delta.index)
        if plain and delta.is_text:
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
            usage=self._usage() if self._counts else None,
        )

    def _usage(self) -> Usage:
        prompt_tokens = sum(len(generation.prompt.token_ids) for generation in self._generations)
        cached_tokens = sum(generation.num_cached_tokens for generation in self._generations)
        drafted = sum((generation.drafted for generation in self._generations), NO_DRAFTS)
        return usage_of(prompt_tokens, self._num_tokens, cached_tokens, drafted=drafted)


class ServingCompletion:
    """Text completions on one engine; choice `p * n + i` is the i-th completion of prompt p."""

    def __init__(self, engine: Engine) -> None:
        self._serving = Serving(engine)

    async def start(self, request: CompletionRequest, caller: Caller) -> list[Generation]:
        """Admits every prompt of a request, or none; raises the errors of `ServingChat.start`."""
        engine, inside = self._serving.engine, self._serving.inside(caller, num_prompts(request.prompt))
        params, given = await inside(partial(self._asked, request))
        engine.require_room(len(given) * params.n, caller.client)
        options = request.prompt_options
        prompts = await inside(lambda: [engine.inputs.prompt(prompt, path, options) for path, prompt in given])
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


def completion_routes(
    engine: Engine, in_flight: RequestsInFlight, turns: EncodingTurns, watch: StreamWatch, route_class: type[APIRoute]
) -> APIRouter:
    """Returns the route that completes texts."""
    router = APIRouter(responses=failures(400, 404, 408, 413, 429, 503), route_class=route_class)
    completion = ServingCompletion(engine)

    @router.post("/v1/completions", response_model=CompletionResponse)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Text completion of one or many prompts, plain or streamed."""
        record = record_of(request)
        record.adopt(body.request_id)
        hold = partial(in_flight.hold_answer, record)
        generations = await admitted(partial(completion.start, body), request, body.timeout, hold)
        record.admitted(shared_id(generations[0].request_id), generations)
        if body.stream:
            return EventStream(partial(completion.stream, generations, body), failed_events, generations, watch)
        outputs = await results_unless_disconnected(generations, request)
        if not outputs:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return PiecedAnswer(completion.response(outputs, body), record.request_id, turns, watch)

    return router
