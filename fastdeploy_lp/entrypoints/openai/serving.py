"""Common parts of routes: admission, waiting for answers while the client is connected, and usage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from fastdeploy_lp.engine.client.engine import Engine
from fastdeploy_lp.engine.client.engine_requests import Pace
from fastdeploy_lp.engine.errors import InvalidRequestError, RequestTimeoutError
from fastdeploy_lp.engine.prepare.input_processor import Prompt, Settled
from fastdeploy_lp.engine.prepare.preparation import Run, run_here
from fastdeploy_lp.entrypoints.openai.errors import NotFoundError
from fastdeploy_lp.entrypoints.openai.middleware.request_record import record_of
from fastdeploy_lp.entrypoints.openai.protocol.request import GenerationRequest
from fastdeploy_lp.entrypoints.openai.protocol.usage import CompletionTokensDetails, PromptTokensDetails, Usage
from fastdeploy_lp.logits_processor.arguments.request import NOTHING_IMPOSED, Imposed
from fastdeploy_lp.request.limits import MAX_PROMPTS
from fastdeploy_lp.request.outputs import NO_DRAFTS, DraftedTokens, StopCause
from fastdeploy_lp.request.sampling_params import SamplingParams

DEFAULT_MODEL_NAME = "default"
# Requests with more prompts run in a thread, regardless of their length.
FEW_PROMPTS = 32
# Tokens of an answer that takes less time to build than a thread takes to start.
FEW_TOKENS = 4096
# Characters of a client's text that an error repeats.
SHOWN = 200

Output = TypeVar("Output", covariant=True)
Result = TypeVar("Result")


class InFlight(Protocol[Output]):
    """A running request of generation or pooling."""

    async def result(self) -> Output:
        """Returns the whole answer."""

    def close(self) -> None:
        """Releases the request: no caller waits for its result."""


async def results_unless_disconnected(in_flight: Sequence[InFlight[Output]], request: Request) -> list[Output] | None:
    """Returns the answers; aborts the requests and returns None if the client disconnects first."""
    try:
        return await unless_disconnected(_all_results(in_flight), request.receive)
    finally:
        for each in in_flight:
            each.close()


async def _all_results(in_flight: Sequence[InFlight[Output]]) -> list[Output]:
    tasks, pace = [], Pace()
    try:
        for each in in_flight:
            tasks.append(asyncio.ensure_future(each.result()))
            await pace.rest()
        return list(await asyncio.gather(*tasks))
    finally:
        # If one fails, no caller waits for the others.
        if not all(task.done() for task in tasks):
            for task in tasks:
                task.cancel()
                await pace.rest()
            await asyncio.gather(*tasks, return_exceptions=True)


async def unless_disconnected(work: Coroutine[Any, Any, Result], receive: Receive) -> Result | None:
    """Returns the result of `work`; cancels it and returns None if the client disconnects first."""
    result = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((result, gone), return_when=asyncio.FIRST_COMPLETED)
        return await result if result.done() else None
    finally:
        for task in (result, gone):
            task.cancel()
        await asyncio.gather(result, gone, return_exceptions=True)


async def while_connected(work: Coroutine[Any, Any, Result], receive: Receive, deadline: float | None = None) -> Result:
    """Returns the result of `work`, which is cancelled if the client disconnects or the deadline passes.

    deadline: on the monotonic clock, None for no limit. Raises ClientDisconnect and RequestTimeoutError.
    """
    result = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        seconds = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        await asyncio.wait((result, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if result.done():
            return await result
        if gone.done():
            raise ClientDisconnect
        raise RequestTimeoutError("timeout: the time of the request is over, and it has not begun")
    finally:
        for task in (result, gone):
            task.cancel()
        await asyncio.gather(result, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


Hold = Callable[[int], None]
"""Reserves the given bytes for the numbers of a long answer, before its request is admitted; raises QueueFullError."""


def hold_nothing(_: int) -> None:
    """Reserves no bytes: for callers without a bound on answers in flight."""


ImposedOn = Callable[[GenerationRequest], Imposed]
"""Returns the operator's part of a request."""


def impose_nothing(_: GenerationRequest) -> Imposed:
    """Imposes nothing: for callers without a policy."""
    return NOTHING_IMPOSED


@dataclass(frozen=True)
class Caller:
    """The client and the deadline of a request.

    client: the unit of fair scheduling. deadline: on the monotonic clock, None for no limit. heavy: True if the body is
    large, so that its work runs in threads. hold: bounds answers in flight. imposed_on: applies the policy.
    """

    client: str = ""
    deadline: float | None = None
    heavy: bool = False
    hold: Hold = hold_nothing
    imposed_on: ImposedOn = impose_nothing


def started(engine: Engine) -> Callable[[], Coroutine[Any, Any, None]]:
    """Returns the dependency of routes that answer with an error until the engine has started."""

    async def require_started() -> None:
        engine.require_started()

    return require_started


async def admitted(
    start: Callable[[Caller], Coroutine[Any, Any, Result]],
    request: Request,
    timeout: float | None,
    hold: Hold = hold_nothing,
) -> Result:
    """Returns the result of `start` for the request's caller.

    Raises ClientDisconnect if the client disconnects, and RequestTimeoutError if the request's time is over.
    """
    record = record_of(request)
    caller = Caller(record.client, record.deadline(timeout), record.heavy, hold, record.imposed_on)
    return await while_connected(start(caller), request.receive, caller.deadline)


class Serving:
    """Admission of requests to one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.model = engine.fd_config.model_config.served_model_name
        self._default_sampling = engine.fd_config.model_config.default_sampling

    def require_model(self, name: str | None) -> None:
        """Raises NotFoundError for any name but the names of the served model."""
        if not name or name == DEFAULT_MODEL_NAME:
            return
        served = self.engine.fd_config.model_config.served_names
        if name not in served:
            reason = f"the model {name[:SHOWN]!r} does not exist; this server has {', '.join(map(repr, served))}"
            raise NotFoundError(reason, "model", "model_not_found")

    def params(self, request: GenerationRequest) -> SamplingParams:
        """Returns the request's parameters for the served model; raises InvalidRequestError or NotFoundError."""
        self.require_model(request.model)
        for name, value in self._default_sampling.items():
            if getattr(request, name) is None:
                setattr(request, name, value)
        if request.return_token_ids is None and not self.engine.inputs.handles_text:
            # Without text, token ids are the only output.
            request.return_token_ids = True
        try:
            return request.sampling_params()
        except ValueError as error:
            found = invalid_field(error)
            raise InvalidRequestError(request.sent_name(found.param or ""), found.reason) from None

    def inside(self, caller: Caller, num_prompts: int = 1) -> Run:
        """Returns the runner of a request's work: a thread if the work may take long, else this thread."""
        heavy = caller.heavy or num_prompts > FEW_PROMPTS
        return self.engine.host.of(caller.client) if heavy else run_here

    def require_few_values(self, params: SamplingParams, num_prompts: int, request: GenerationRequest) -> None:
        """Raises InvalidRequestError, with the body's field names, if all sequences together have too many values."""
        try:
            self.engine.inputs.require_few_values(params, num_prompts)
        except InvalidRequestError as error:
            raise _as_sent(error, request) from None

    async def settle(
        self, prompts: Sequence[Prompt], params: SamplingParams, request: GenerationRequest, caller: Caller
    ) -> list[Settled]:
        """Returns the settled parameters of each prompt; raises InvalidRequestError with the body's field names."""
        inside, imposed = self.inside(caller, len(prompts)), caller.imposed_on(request)
        if imposed.max_tokens is not None and params.max_tokens and "max_tokens" not in request.model_fields_set:
            # The default of text completions, which the client did not ask for.
            params.max_tokens = min(params.max_tokens, imposed.max_tokens)
        try:
            return await self.engine.preparation.settle_each(params, prompts, caller.client, inside, imposed)
        except InvalidRequestError as error:
            raise _as_sent(error, request) from None


def _as_sent(error: InvalidRequestError, request: GenerationRequest) -> InvalidRequestError:
    return InvalidRequestError(request.sent_name(error.param or ""), error.reason, error.code)


def invalid_field(error: ValueError) -> InvalidRequestError:
    """Converts a parameter error, `field: reason`, to InvalidRequestError."""
    field, _, reason = str(error).partition(": ")
    return InvalidRequestError(field, reason)


def num_prompts(given: str | Sequence[Any]) -> int:
    """Returns the number of prompts in a field of one or many."""
    return 1 if isinstance(given, str) or isinstance(given[0], int) else len(given)


def each_prompt(field: str, given: str | Sequence[int | str | list[int]]) -> list[tuple[str, str | list[int]]]:
    """Returns each prompt of a field of one or many, as text or token ids, with its path in the body.

    Raises InvalidRequestError for too many prompts.
    """
    if isinstance(given, str):
        return [(field, given)]
    tokens = [token for token in given if isinstance(token, int)]
    if tokens:
        return [(field, tokens)]
    if len(given) > MAX_PROMPTS:
        raise InvalidRequestError(field, f"{len(given)} prompts are too many; a request may have {MAX_PROMPTS}")
    return [(f"{field}.{index}", prompt) for index, prompt in enumerate(given) if not isinstance(prompt, int)]


def usage_of(
    prompt_tokens: int,
    completion_tokens: int,
    cached_tokens: int,
    reasoning_tokens: int | None = None,
    drafted: DraftedTokens = NO_DRAFTS,
) -> Usage:
    """Returns the counts with their sum.

    cached_tokens: prompt tokens found in the prefix cache. reasoning_tokens: completion tokens that are reasoning, None
    if reasoning is not separated. drafted: of a server that verifies draft tokens.
    """
    details = None
    if drafted.verified:
        rejected = drafted.verified - drafted.accepted
        details = CompletionTokensDetails(
            reasoning_tokens=reasoning_tokens,
            accepted_prediction_tokens=drafted.accepted,
            rejected_prediction_tokens=rejected,
        )
    elif reasoning_tokens is not None:
        details = CompletionTokensDetails(reasoning_tokens=reasoning_tokens)
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached_tokens),
        completion_tokens_details=details,
    )


def told_reason(stop_reason: StopCause | None, request: GenerationRequest) -> StopCause | None:
    """Returns the stop string, the `stop_token_ids` token or the processor that ended a choice.

    None for the model's end token.
    """
    asked_for = not isinstance(stop_reason, int) or stop_reason in (request.stop_token_ids or ())
    return stop_reason if asked_for else None
