"""What chat and text completions do alike: admission and usage."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastdeploy_lp.engine.engine import Engine
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.input_processor import Prompt, Settled
from fastdeploy_lp.entrypoints.openai.errors import NotFoundError
from fastdeploy_lp.entrypoints.openai.protocol.request import GenerationRequest
from fastdeploy_lp.entrypoints.openai.protocol.usage import CompletionTokensDetails, PromptTokensDetails, Usage
from fastdeploy_lp.request_limits import MAX_PROMPTS
from fastdeploy_lp.sampling_params import SamplingParams

DEFAULT_MODEL_NAME = "default"

Hold = Callable[[int], None]
"""Told the bytes of numbers of a long answer, before the engine takes its request; raises QueueFullError."""


def hold_nothing(_: int) -> None:
    """For callers without a bound on answers in flight."""


class Serving:
    """Admits requests to one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.model = engine.fd_config.model_config.served_model_name

    def require_model(self, name: str | None) -> None:
        """Raise NotFoundError for a model that is not the one that is served."""
        if name not in (None, "", DEFAULT_MODEL_NAME, self.model):
            reason = f"the model {name!r} does not exist; this server has {self.model!r}"
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

    async def settle(self, prompt: Prompt, params: SamplingParams, request: GenerationRequest) -> Settled:
        """What the engine runs for this prompt; raises InvalidRequestError with fields named as in the body."""
        try:
            return await self.engine.settle(params, prompt)
        except InvalidRequestError as error:
            raise InvalidRequestError(request.sent_name(error.param or ""), error.reason, error.code) from None


def invalid_field(error: ValueError) -> InvalidRequestError:
    """What parameters say of a field, `field: reason`, as the refusal of a request."""
    field, _, reason = str(error).partition(": ")
    return InvalidRequestError(field, reason)


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
