"""What one request asks of the sampler and of the chain; the same class over HTTP, offline and between processes."""

from __future__ import annotations

import math
from typing import Any

import msgspec

MAX_SEED = 2**64 - 1
MAX_INTEGER = 2**63 - 1
GREEDY_BELOW = 1e-5
MAX_N = 128
MAX_STOP_STRINGS = 16


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Sampling and stopping options of one request.

    n: completions to generate, each with a seed of its own derived from `seed`.
    temperature: 0 (or anything below 1e-5) picks the most likely token; above, logits are divided by it.
    top_p: keep the smallest set of tokens whose probabilities sum to at least this, in (0, 1].
    top_k: keep this many most likely tokens; 0 or -1 keeps all.
    seed: 0 to 2**64 - 1; the same seed gives the same tokens whatever else is in the batch. None draws one.
    max_tokens: output tokens at most; None goes on until the context is full.
    stop: strings that end the output and are cut off from it.
    stop_token_ids: tokens that end the output, besides the model's own end-of-sequence tokens.
    ignore_eos: go on past the model's end-of-sequence tokens; for measuring.
    logits_processors_args: arguments that all declared logits processors see, `{"logit_bias": {42: 5.0}}`.
    extra_args: the same, under vLLM's name (`vllm_xargs` over HTTP).
    logit_bias: the same for the builtin of OpenAI's own field, `{42: 5.0}`.
    logits_processors: processors by name, each with arguments of its own; only these see the request. A dict
        `{"name": {…}}`, or a list `[{"name": …, "params": {…}}]` whose order is the order of execution.

    Raises ValueError naming the field and what is allowed.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    max_tokens: int | None = None
    stop: list[str] | str | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    logits_processors_args: dict[str, Any] | None = None
    extra_args: dict[str, Any] | None = None
    logit_bias: dict[int | str, float] | None = None
    logits_processors: dict[str, Any] | list[Any] | None = None

    def __post_init__(self) -> None:
        _check_integer("n", self.n, 1, MAX_N)
        _check_number("temperature", self.temperature, 0.0, 100.0)
        self.temperature = float(self.temperature) if self.temperature >= GREEDY_BELOW else 0.0
        _check_number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise ValueError("top_p: must be above 0 and at most 1")
        self.top_p = float(self.top_p)
        _check_integer("top_k", self.top_k, -1, MAX_INTEGER)
        if self.seed is not None:
            _check_integer("seed", self.seed, 0, MAX_SEED)
        if self.max_tokens is not None:
            _check_integer("max_tokens", self.max_tokens, 1, MAX_INTEGER)
        if isinstance(self.stop, str):
            self.stop = [self.stop]
        _check_stop(self.stop)
        _check_stop_token_ids(self.stop_token_ids)
        if not isinstance(self.ignore_eos, bool):
            raise ValueError(f"ignore_eos: must be true or false, not {self.ignore_eos!r}")
        for name in ("logits_processors_args", "extra_args", "logit_bias"):
            _check_kind(name, getattr(self, name), dict)
        _check_kind("logits_processors", self.logits_processors, (dict, list))

    @property
    def stop_strings(self) -> list[str]:
        """`stop` as a list."""
        return self.stop if isinstance(self.stop, list) else []


def _check_kind(name: str, value: object, kinds: type | tuple[type, ...]) -> None:
    if value is not None and not isinstance(value, kinds):
        raise ValueError(f"{name}: must be an object, not {type(value).__name__}")


def _check_stop_token_ids(token_ids: object) -> None:
    if token_ids is None:
        return
    if not isinstance(token_ids, list):
        raise ValueError(f"stop_token_ids: must be a list of token ids, not {type(token_ids).__name__}")
    for index, token in enumerate(token_ids):
        _check_integer(f"stop_token_ids.{index}", token, 0, MAX_INTEGER)


def _check_integer(name: str, value: object, low: int, high: int) -> None:
    allowed = f"an integer from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name}: must be {allowed}, not {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{name}: must be {allowed}, not {value}")


def _check_number(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{name}: must be a number from {low:g} to {high:g}, not {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{name}: must be from {low:g} to {high:g}, not {value:g}")


def _check_stop(stop: object) -> None:
    if stop is None:
        return
    if not isinstance(stop, list) or len(stop) > MAX_STOP_STRINGS:
        raise ValueError(f"stop: must be a string or a list of at most {MAX_STOP_STRINGS} strings")
    for index, text in enumerate(stop):
        if not isinstance(text, str) or not text:
            raise ValueError(f"stop.{index}: must be a string that is not empty")
