"""What chat and text completions do alike: admission and usage."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request

from fastdeploy_lp.engine.engine import Engine
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.host_threads import Run, run_here
from fastdeploy_lp.engine.input_processor import Prompt, Settled
from fastdeploy_lp.entrypoints.openai.disconnect import while_connected
from fastdeploy_lp.entrypoints.openai.errors import NotFoundError
from fastdeploy_lp.entrypoints.openai.middleware.request_record import record_of
from fastdeploy_lp.entrypoints.openai.protocol.request import GenerationRequest
from fastdeploy_lp.entrypoints.openai.protocol.usage import CompletionTokensDetails, PromptTokensDetails, Usage
from fastdeploy_lp.request_limits import MAX_PROMPTS
from fastdeploy_lp.sampling_params import SamplingParams

DEFAULT_MODEL_NAME = "default"
# More of them are work for a thread, however short they are.
FEW_PROMPTS = 32
# Of an answer that is made in less time than a thread takes to begin.
FEW_TOKENS = 4096
# Characters of a client's text that an error repeats.
SHOWN = 200

Result = TypeVar("Result")


@dataclass(frozen=True)
class Caller:
    """Whose a request is, and when its time is over.

    client: who shares with others, where clients take turns. deadline: on the monotonic clock, None for any time.
    heavy: the body is large, so that the work that it causes belongs into threads.
    """

    client: str = ""
    deadline: float | None = None
    heavy: bool = False


async def admitted(
    start: Callable[[Caller], Coroutine[Any, Any, Result]], request: Request, timeout: float | None
) -> Result:
    """What `start` returns for the request's caller.

    Waiting ends with the client and with the request's time: raises ClientDisconnect and RequestTimeoutError.
    """
    record = record_of(request)
    caller = Caller(record.client, record.deadline(timeout), record.heavy)
    return await while_connected(start(caller), request.receive, caller.deadline)


class Serving:
    """Admits requests to one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.model = engine.fd_config.model_config.served_model_name

    def require_model(self, name: str | None) -> None:
        """Raise NotFoundError for a model that is not the one that is served."""
        if name not in (None, "", DEFAULT_MODEL_NAME, self.model):
            reason = f"the model {name[:SHOWN]!r} does not exist; this server has {self.model!r}"
            raise NotFoundError(reason, "model", "model_not_found")

    def params(self, request: GenerationRequest) -> SamplingParams:
        """The request's parameters, for the model that is served; raises InvalidRequestError or NotFoundError."""
        self.require_model(request.model)
        if request.return_token_ids is None and not self.engine.inputs.handles_text:
            # There is nothing else to answer with.
            request.return_token_ids = True
        try:
            return request.sampling_params()
        except ValueError as error:
            found = invalid_field(error)
            raise InvalidRequestError(request.sent_name(found.param or ""), found.reason) from None

    def inside(self, caller: Caller, num_prompts: int = 1) -> Run:
        """Where work for a request runs: here, or in a thread where it may take long."""
        heavy = caller.heavy or num_prompts > FEW_PROMPTS
        return self.engine.host.of(caller.client) if heavy else run_here

    def require_few_values(self, params: SamplingParams, num_prompts: int, request: GenerationRequest) -> None:
        """Raise InvalidRequestError, in the body's words, for more than all sequences together may carry."""
        try:
            self.engine.inputs.require_few_values(params, num_prompts)
        except InvalidRequestError as error:
            raise _as_sent(error, request) from None

    async def settle(
        self, prompts: Sequence[Prompt], params: SamplingParams, request: GenerationRequest, inside: Run
    ) -> list[Settled]:
        """What the engine runs for each prompt; raises InvalidRequestError with fields named as in the body."""
        try:
            return await self.engine.settle_each(params, prompts, inside)
        except InvalidRequestError as error:
            raise _as_sent(error, request) from None


def _as_sent(error: InvalidRequestError, request: GenerationRequest) -> InvalidRequestError:
    return InvalidRequestError(request.sent_name(error.param or ""), error.reason, error.code)


def invalid_field(error: ValueError) -> InvalidRequestError:
    """What parameters say of a field, `field: reason`, as the refusal of a request."""
    field, _, reason = str(error).partition(": ")
    return InvalidRequestError(field, reason)


def num_prompts(given: str | Sequence[Any]) -> int:
    """Prompts of a field that holds one or many."""
    return 1 if isinstance(given, str) or isinstance(given[0], int) else len(given)


def each_prompt(field: str, given: str | Sequence[int | str | list[int]]) -> list[tuple[str, str | list[int]]]:
    """Each prompt of a field that holds one or many, as text or token ids, with its path in the body.

    Raises InvalidRequestError for too many of them.
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
    prompt_tokens: int, completion_tokens: int, cached_tokens: int, reasoning_tokens: int | None = None
) -> Usage:
    """Counts with their sum.

    `cached_tokens` of the prompt's were found in the prefix cache; `reasoning_tokens` of the completions' are
    reasoning, None where that is not told apart.
    """
    details = None if reasoning_tokens is None else CompletionTokensDetails(reasoning_tokens=reasoning_tokens)
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached_tokens),
        completion_tokens_details=details,
    )


def told_reason(stop_reason: int | str | None, request: GenerationRequest) -> int | str | None:
    """The stop string, or token of `stop_token_ids`, that ended a choice; the model's own end is no reason."""
    asked_for = isinstance(stop_reason, str) or stop_reason in (request.stop_token_ids or ())
    return stop_reason if asked_for else None
