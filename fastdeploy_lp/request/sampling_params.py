"""What one request asks of the sampler and of the chain; the same class over HTTP, offline and between processes."""

from __future__ import annotations

import copy
import enum
import math
from typing import Any

import msgspec
from typing_extensions import Self

from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams
from fastdeploy_lp.request.limits import (
    MAX_BAD_WORD_CHARACTERS,
    MAX_BAD_WORD_LISTS,
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_LOGPROBS,
    MAX_N,
    MAX_REPETITION_PENALTY,
    MAX_STOP_CHARACTERS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
)
from fastdeploy_lp.request.trace import TraceParams

# As vLLM has it.
DRAWS_SEED = -1
MIN_SEED, MAX_SEED = -(2**63), 2**64 - 1
MAX_INTEGER = 2**63 - 1
GREEDY_BELOW = 1e-5
# Samplers compute with float32, in which smaller ones are 0, and of 0 nothing would be kept.
SMALLEST_TOP_P = 1e-30
# An integer of more bits is named by its size: writing out a very large one is refused by Python itself.
MAX_SHOWN_BITS = 128


class RequestOutputKind(enum.Enum):
    """What each output of a stream holds: everything so far, what is new, or nothing before the whole answer."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Sampling and stopping options of one request.

    Fields and lists may be as large as `request_limits` says.

    n: completions to generate, each with a seed of its own derived from `seed`.
    temperature: 0 (or anything below 1e-5) picks the most likely token; above, logits are divided by it.
    top_p: keep the smallest set of tokens whose probabilities sum to at least this, in (0, 1].
    top_k: keep this many most likely tokens; 0 or -1 keeps all.
    min_p: leave out tokens less likely than this share of the most likely one, in [0, 1].
    repetition_penalty: 1e-6 to 1e6; divides positive logits, and multiplies others, of the tokens of prompt and output.
    presence_penalty: -2 to 2; taken off the logits of tokens that the output holds.
    frequency_penalty: -2 to 2; taken off the logit of a token for each time that the output holds it.
    bad_words: strings that are not generated, at the beginning of a word or with a space before it.
    bad_words_token_ids: the same as token ids: the last token of a list is ruled out behind the others.
    allowed_token_ids: only these tokens are generated.
    min_tokens: no end-of-sequence token, stop token or stop string ends the output before it has so many tokens.
    logprobs: 0 to 20; give the log probability of each output token and of so many most likely ones. None for none.
    prompt_logprobs: 0 to 20; the same for the tokens of the prompt.
    seed: -2**63 to 2**64 - 1; the same seed gives the same tokens whatever else is in the batch. None draws one, and so
        does -1, as in vLLM.
    max_tokens: output tokens at most; None goes on until the context is full.
    stop: strings that end the output and are cut off from it.
    stop_token_ids: tokens that end the output, besides the model's own end-of-sequence tokens; their text is cut off.
    include_stop_str_in_output: leave the stop string, or the text of the stop token, in the output.
    skip_special_tokens: leave special tokens out of the text.
    ignore_eos: go on past the model's end-of-sequence tokens; for measuring.
    logits_processors_args: arguments that all declared logits processors see, `{"logit_bias": {42: 5.0}}`.
    extra_args: the same, under vLLM's name (`vllm_xargs` over HTTP).
    logit_bias: the same for the builtin of OpenAI's own field, `{42: 5.0}`.
    logits_processors: processors by name, each with arguments of its own; only these see the request. A dict
        `{"name": {…}}`, or a list `[{"name": …, "params": {…}}]` whose order is the order of execution. An entry of the
        list with `"shadow": True` runs in shadow.
    logits_processors_shadow: names of processors that run in shadow: on a copy, to tell how often they would change a
        token.
    logits_processors_trace: `TraceParams(top_k=8)`, the same as a dict, or True: tell how each token came about.
    guided_decoding: the form that the output has to have, such as `GuidedDecodingParams(regex="[0-9]+")`.
    output_kind: what each output of an offline stream holds; over HTTP every piece holds what is new.

    Raises ValueError naming the field and what is allowed.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bad_words: list[str] | None = None
    bad_words_token_ids: list[list[int]] | None = None
    allowed_token_ids: list[int] | None = None
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: list[str] | str | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    ignore_eos: bool = False
    logits_processors_args: dict[str, Any] | None = None
    extra_args: dict[str, Any] | None = None
    logit_bias: dict[int | str, float] | None = None
    logits_processors: dict[str, Any] | list[Any] | None = None
    logits_processors_shadow: list[str] | None = None
    logits_processors_trace: TraceParams | bool | None = None
    guided_decoding: GuidedDecodingParams | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_lists()

    def _check_numbers(self) -> None:
        _check_integer("n", self.n, 1, MAX_N)
        _check_number("temperature", self.temperature, 0.0, 100.0)
        self.temperature = float(self.temperature) if self.temperature >= GREEDY_BELOW else 0.0
        _check_number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise ValueError("top_p: must be above 0 and at most 1")
        self.top_p = max(float(self.top_p), SMALLEST_TOP_P)
        _check_integer("top_k", self.top_k, -1, MAX_INTEGER)
        self._check_penalties()
        if self.seed is not None:
            _check_integer("seed", self.seed, MIN_SEED, MAX_SEED)
            # A negative one has the bits that it has as a signed integer.
            self.seed = None if self.seed == DRAWS_SEED else self.seed & MAX_SEED
        self._check_lengths()
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _check_integer(name, getattr(self, name), 0, MAX_LOGPROBS)

    def _check_lists(self) -> None:
        """Of any size, and what has a form."""
        self._check_token_lists()
        if isinstance(self.stop, str):
            self.stop = [self.stop]
        _check_stop(self.stop)
        for name in ("include_stop_str_in_output", "skip_special_tokens", "ignore_eos"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}: must be true or false, not {getattr(self, name)!r}")
        for name in ("logits_processors_args", "extra_args", "logit_bias"):
            _check_kind(name, getattr(self, name), dict)
        _check_kind("logits_processors", self.logits_processors, (dict, list))
        _check_list("logits_processors_shadow", self.logits_processors_shadow, "names")
        self.logits_processors_trace = TraceParams.of(self.logits_processors_trace)
        if not isinstance(self.guided_decoding, GuidedDecodingParams | None):
            raise ValueError(f"guided_decoding: must be GuidedDecodingParams, not {self.guided_decoding!r}")
        if not isinstance(self.output_kind, RequestOutputKind):
            raise ValueError(f"output_kind: must be a RequestOutputKind, not {self.output_kind!r}")

    def _check_penalties(self) -> None:
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_number("repetition_penalty", self.repetition_penalty, 0.0, MAX_REPETITION_PENALTY)
        if self.repetition_penalty < 1 / MAX_REPETITION_PENALTY:
            low, high = 1 / MAX_REPETITION_PENALTY, MAX_REPETITION_PENALTY
            raise ValueError(f"repetition_penalty: must be from {low:g} to {high:g}, not {self.repetition_penalty:g}")
        for name in ("presence_penalty", "frequency_penalty"):
            _check_number(name, getattr(self, name), -2.0, 2.0)
        for name in ("min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
            setattr(self, name, float(getattr(self, name)))

    def _check_lengths(self) -> None:
        _check_integer("min_tokens", self.min_tokens, 0, MAX_INTEGER)
        if self.max_tokens is None:
            return
        _check_integer("max_tokens", self.max_tokens, 1, MAX_INTEGER)
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens: must be at most max_tokens, which is {self.max_tokens}")

    def _check_token_lists(self) -> None:
        _check_token_ids("stop_token_ids", self.stop_token_ids)
        _check_size("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKEN_IDS)
        _check_token_ids("allowed_token_ids", self.allowed_token_ids)
        if self.allowed_token_ids == []:
            raise ValueError("allowed_token_ids: must be a list of at least one token id")
        self._check_bad_words()

    def _check_bad_words(self) -> None:
        _check_list("bad_words", self.bad_words, "strings")
        _check_size("bad_words", self.bad_words, MAX_BAD_WORDS)
        for index, word in enumerate(self.bad_words or []):
            if not isinstance(word, str) or not word.strip():
                raise ValueError(f"bad_words.{index}: must be a string that is not empty")
            _check_size(f"bad_words.{index}", word, MAX_BAD_WORD_CHARACTERS, "characters")
        _check_list("bad_words_token_ids", self.bad_words_token_ids, "lists of token ids")
        _check_size("bad_words_token_ids", self.bad_words_token_ids, MAX_BAD_WORD_LISTS)
        for index, tokens in enumerate(self.bad_words_token_ids or []):
            _check_token_ids(f"bad_words_token_ids.{index}", tokens)
            if not tokens:
                raise ValueError(f"bad_words_token_ids.{index}: must be a list of at least one token id")
            _check_size(f"bad_words_token_ids.{index}", tokens, MAX_BAD_WORD_TOKENS)

    @property
    def trace(self) -> TraceParams | None:
        """`logits_processors_trace` as it was settled."""
        return TraceParams.of(self.logits_processors_trace)

    @property
    def stop_strings(self) -> list[str]:
        """`stop` as a list."""
        return self.stop if isinstance(self.stop, list) else []

    # vLLM's names for what processors written for it read.

    @property
    def eos_token_id(self) -> int | None:
        """The model's end-of-sequence token: None until the engine has taken the request, as in vLLM."""
        return None

    @property
    def all_stop_token_ids(self) -> set[int]:
        """`stop_token_ids`; once the engine has taken the request, the model's end-of-sequence tokens as well."""
        return set(self.stop_token_ids or ())

    @property
    def structured_outputs(self) -> GuidedDecodingParams | None:
        """`guided_decoding`; in the worker it holds the compiled grammar's text as `grammar`, whatever was sent."""
        return self.guided_decoding

    @property
    def thinking_token_budget(self) -> int | None:
        """The argument `thinking_budget`, which has the builtin ThinkingBudget limit the reasoning."""
        found = {**(self.logits_processors_args or {}), **(self.extra_args or {})}.get("thinking_budget")
        return found if isinstance(found, int) else None

    def clone(self) -> Self:
        """A copy that shares no lists or dicts with this one."""
        return copy.deepcopy(self)


class SettledParams(SamplingParams):
    """Parameters that were checked once for all sequences of a request: lists are not looked at again.

    Reading one would otherwise take the worker's step as long as its lists are.
    """

    def __post_init__(self) -> None:
        """Check numbers alone."""
        self._check_numbers()


def _check_kind(name: str, value: object, kinds: type | tuple[type, ...]) -> None:
    if value is not None and not isinstance(value, kinds):
        raise ValueError(f"{name}: must be an object, not {type(value).__name__}")


def _check_list(name: str, value: object, entries: str) -> None:
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{name}: must be a list of {entries}, not {type(value).__name__}")


def _check_size(name: str, value: list[Any] | str | None, most: int, of: str = "entries") -> None:
    if value is not None and len(value) > most:
        raise ValueError(f"{name}: must have at most {most} {of}, not {len(value)}")


def _check_token_ids(name: str, token_ids: list[int] | None) -> None:
    _check_list(name, token_ids, "token ids")
    if token_ids and set(map(type, token_ids)) == {int} and 0 <= min(token_ids) <= max(token_ids) <= MAX_INTEGER:
        return
    for index, token in enumerate(token_ids or []):
        _check_integer(f"{name}.{index}", token, 0, MAX_INTEGER)


def _check_integer(name: str, value: object, low: int, high: int) -> None:
    allowed = f"an integer from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name}: must be {allowed}, not {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{name}: must be {allowed}, not {_shown(value)}")


def _check_number(name: str, value: object, low: float, high: float) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"{name}: must be a number from {low:g} to {high:g}, not {value!r}")
    if isinstance(value, (int, float)) and not low <= value <= high:
        raise ValueError(f"{name}: must be from {low:g} to {high:g}, not {_shown(value)}")


def _shown(number: float) -> str:
    if isinstance(number, int):
        return str(number) if number.bit_length() <= MAX_SHOWN_BITS else f"one of {number.bit_length()} bits"
    return f"{number:g}"


def _check_stop(stop: object) -> None:
    if stop is None:
        return
    if not isinstance(stop, list) or len(stop) > MAX_STOP_STRINGS:
        raise ValueError(f"stop: must be a string or a list of at most {MAX_STOP_STRINGS} strings")
    for index, text in enumerate(stop):
        if not isinstance(text, str) or not text:
            raise ValueError(f"stop.{index}: must be a string that is not empty")
        _check_size(f"stop.{index}", text, MAX_STOP_CHARACTERS, "characters")
