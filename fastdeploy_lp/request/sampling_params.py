"""Parameters of a request for the sampler and the chain, each declared once with its bounds and its default.

The same class serves over HTTP, offline and between processes.
"""

from __future__ import annotations

import copy
import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
from typing_extensions import Self

from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams
from fastdeploy_lp.request.limits import (
    MAX_BAD_WORD_CHARACTERS,
    MAX_BAD_WORD_LISTS,
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_CACHE_SALT,
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


@dataclass(frozen=True)
class Slot:
    """Array of a field in `share_inputs`, with one entry per slot.

    empty: entry of a slot without a request, or of a request whose field is None. device: True for a copy on the
    device. entry: the entry for a value.
    """

    dtype: str
    empty: float
    device: bool = True
    entry: Callable[[Any], float] | None = None

    def of(self, value: Any) -> Any:
        """Returns the entry for a field's value."""
        if value is None:
            return self.empty
        return value if self.entry is None else self.entry(value)


@dataclass(frozen=True)
class Declared:
    """Declaration of a sampling field: its check, body field, slot and control in the playground all follow from it.

    low, high: inclusive bounds of a number; None for other types. above: exclude `low`. slot: for fields that the draw
    reads. control: show the field in the playground.
    """

    help: str
    low: float | None = None
    high: float | None = None
    above: bool = False
    slot: Slot | None = None
    control: bool = False


@dataclass(frozen=True)
class SamplingField:
    """One field of `SamplingParams`. kind: its type without None."""

    name: str
    kind: Any
    optional: bool
    default: Any
    declared: Declared

    @property
    def is_number(self) -> bool:
        """True if the field has bounds."""
        return self.declared.low is not None

    def checked(self, value: Any) -> Any:
        """Returns a number as its type; raises ValueError if it is out of bounds."""
        low, high = self.declared.low, self.declared.high
        if low is None or high is None or (value is None and self.optional):
            return value
        if self.kind is int:
            check_integer(self.name, value, int(low), int(high))
            return value
        _check_number(self.name, value, low, high)
        if self.declared.above and value == low:
            raise ValueError(f"{self.name}: must be above {low:g} and at most {high:g}")
        return float(value)


def sampling_fields(params: type[msgspec.Struct]) -> dict[str, SamplingField]:
    """Returns the fields of a struct whose annotations are `Annotated[type, Declared(...)]`, by name."""
    hints = get_type_hints(params, include_extras=True)
    found = {}
    for field in msgspec.structs.fields(params):
        annotation, declared = get_args(hints[field.name])
        kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not type(None)]
        optional = type(None) in get_args(annotation)
        kind = kinds[0] if len(kinds) == 1 else annotation
        found[field.name] = SamplingField(field.name, kind, optional, field.default, declared)
    return found


def check_integer(name: str, value: object, low: int, high: int) -> None:
    """Raises ValueError unless `value` is an integer from `low` to `high`; a bool is none."""
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


class RequestOutputKind(enum.Enum):
    """Content of each output of a stream: everything so far, the new part, or nothing before the whole answer."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Sampling and stopping options of one request; `request.limits` has the limits of lists.

    Raises ValueError naming the field and the allowed values.
    """

    n: Annotated[
        int, Declared("completions to generate, each with a separate seed derived from `seed`", low=1, high=MAX_N)
    ] = 1
    temperature: Annotated[
        float,
        Declared(
            "divides the logits; below 1e-5 the most likely token is taken",
            low=0.0,
            high=100.0,
            slot=Slot("float32", 0.0),
            control=True,
        ),
    ] = 1.0
    max_tokens: Annotated[
        int | None,
        Declared(
            "maximum number of output tokens; without one, until the context is full",
            low=1,
            high=MAX_INTEGER,
            control=True,
        ),
    ] = None
    top_p: Annotated[
        float,
        Declared(
            "keeps the fewest most likely tokens whose probabilities sum to at least this",
            low=0.0,
            high=1.0,
            above=True,
            slot=Slot("float32", 1.0),
            control=True,
        ),
    ] = 1.0
    top_k: Annotated[
        int,
        Declared(
            "keeps this many most likely tokens; 0 and -1 keep all",
            low=-1,
            high=MAX_INTEGER,
            slot=Slot("int64", 0, entry=lambda top_k: max(top_k, 0)),
            control=True,
        ),
    ] = 0
    min_p: Annotated[
        float,
        Declared(
            "excludes tokens less likely than this share of the most likely one",
            low=0.0,
            high=1.0,
            slot=Slot("float32", 0.0),
            control=True,
        ),
    ] = 0.0
    seed: Annotated[
        int | None,
        Declared(
            "the same seed gives the same tokens in any batch; without one, or with -1, it is drawn",
            low=MIN_SEED,
            high=MAX_SEED,
            slot=Slot("uint64", 0, device=False),
            control=True,
        ),
    ] = None
    repetition_penalty: Annotated[
        float,
        Declared(
            "divides positive logits, and multiplies others, of tokens of the prompt and output",
            low=1 / MAX_REPETITION_PENALTY,
            high=MAX_REPETITION_PENALTY,
            control=True,
        ),
    ] = 1.0
    presence_penalty: Annotated[
        float, Declared("is subtracted from the logits of tokens in the output", low=-2.0, high=2.0, control=True)
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        Declared(
            "is subtracted from the logit of a token for each occurrence in the output",
            low=-2.0,
            high=2.0,
            control=True,
        ),
    ] = 0.0
    bad_words: Annotated[
        list[str] | None, Declared("strings that are banned, at the beginning of a word and after a space")
    ] = None
    bad_words_token_ids: Annotated[
        list[list[int]] | None, Declared("lists of token ids; the last token of a list is banned after the others")
    ] = None
    allowed_token_ids: Annotated[list[int] | None, Declared("the only tokens that are generated")] = None
    min_tokens: Annotated[
        int,
        Declared(
            "no end-of-sequence token, stop token or stop string ends the output before this many tokens",
            low=0,
            high=MAX_INTEGER,
        ),
    ] = 0
    logprobs: Annotated[
        int | None,
        Declared(
            "reports the log probability of each output token and of this many most likely ones",
            low=0,
            high=MAX_LOGPROBS,
        ),
    ] = None
    prompt_logprobs: Annotated[
        int | None, Declared("the same for the tokens of the prompt; not with `stream`", low=0, high=MAX_LOGPROBS)
    ] = None
    stop: Annotated[
        list[str] | str | None, Declared("strings that end the output and are cut off from it", control=True)
    ] = None
    stop_token_ids: Annotated[
        list[int] | None,
        Declared("tokens that end the output, besides the model's end-of-sequence tokens; their text is cut off"),
    ] = None
    include_stop_str_in_output: Annotated[
        bool, Declared("keeps the stop string, or the text of the stop token, in the output")
    ] = False
    skip_special_tokens: Annotated[bool, Declared("omits special tokens from the text")] = True
    ignore_eos: Annotated[bool, Declared("continues after the model's end-of-sequence tokens; for measuring")] = False
    logits_processors_args: Annotated[
        dict[str, Any] | None,
        Declared('arguments that all declared logits processors see, `{"logit_bias": {42: 5.0}}`'),
    ] = None
    extra_args: Annotated[dict[str, Any] | None, Declared("the same under vLLM's name; `vllm_xargs` over HTTP")] = None
    logit_bias: Annotated[
        dict[int | str, float] | None, Declared("the same for the builtin of OpenAI's field, `{42: 5.0}`")
    ] = None
    logits_processors: Annotated[
        dict[str, Any] | list[Any] | None,
        Declared(
            'processors by name, each with its arguments: an object `{"name": {…}}`, or a list `[{"name": '
            '…, "params": {…}}]` in the order of execution, where `"shadow": true` runs an entry in shadow; '
            "only these processors see the request"
        ),
    ] = None
    logits_processors_shadow: Annotated[
        list[str] | None,
        Declared("names of processors to run in shadow: on a copy, counting how often they would change a token"),
    ] = None
    logits_processors_trace: Annotated[
        TraceParams | bool | None,
        Declared("explains how each token was chosen: `TraceParams(top_k=8)`, the same as an object, or true"),
    ] = None
    guided_decoding: Annotated[
        GuidedDecodingParams | None,
        Declared('the required form of the output, such as `GuidedDecodingParams(regex="[0-9]+")`'),
    ] = None
    speculative: Annotated[
        bool, Declared("lets the server verify draft tokens, several a step; the output is the same either way")
    ] = True
    prediction: Annotated[
        list[int] | str | None,
        Declared("text, or its token ids, that the output is likely to repeat; a source of draft tokens"),
    ] = None
    cache_salt: Annotated[
        str | None,
        Declared("shares the prefix cache with requests that have the same text here, and with no others"),
    ] = None
    stream_interval: Annotated[
        int | None,
        Declared(
            "output tokens that each piece of a stream has at least, but for the first and the last piece",
            low=1,
            high=MAX_INTEGER,
        ),
    ] = None
    output_kind: Annotated[
        RequestOutputKind,
        Declared("content of each output of an offline stream; over HTTP every piece has only what is new"),
    ] = RequestOutputKind.CUMULATIVE

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_lists()

    def _check_numbers(self) -> None:
        for field in NUMBERS:
            setattr(self, field.name, field.checked(getattr(self, field.name)))
        self.temperature = self.temperature if self.temperature >= GREEDY_BELOW else 0.0
        self.top_p = max(self.top_p, SMALLEST_TOP_P)
        if self.seed is not None:
            # A negative one has the bits that it has as a signed integer.
            self.seed = None if self.seed == DRAWS_SEED else self.seed & MAX_SEED
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens: must be at most max_tokens, which is {self.max_tokens}")

    def _check_lists(self) -> None:
        """Of any size, and what has a form."""
        self._check_token_lists()
        if isinstance(self.stop, str):
            self.stop = [self.stop]
        _check_stop(self.stop)
        for name in ("include_stop_str_in_output", "skip_special_tokens", "ignore_eos", "speculative"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}: must be true or false, not {getattr(self, name)!r}")
        for name in ("logits_processors_args", "extra_args", "logit_bias"):
            _check_kind(name, getattr(self, name), dict)
        _check_kind("prediction", self.prediction, (str, list))
        if isinstance(self.prediction, list):
            _check_token_ids("prediction", self.prediction)
        _check_salt(self.cache_salt)
        _check_kind("logits_processors", self.logits_processors, (dict, list))
        _check_list("logits_processors_shadow", self.logits_processors_shadow, "names")
        if self.logits_processors_trace is not None:
            self.logits_processors_trace = TraceParams.of(self.logits_processors_trace)
        if not isinstance(self.guided_decoding, GuidedDecodingParams | None):
            raise ValueError(f"guided_decoding: must be GuidedDecodingParams, not {self.guided_decoding!r}")
        if not isinstance(self.output_kind, RequestOutputKind):
            raise ValueError(f"output_kind: must be a RequestOutputKind, not {self.output_kind!r}")

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
        asked = self.logits_processors_trace
        return None if asked is None else TraceParams.of(asked)

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
    """Parameters that were checked once for all sequences of a request: lists are not checked again.

    Otherwise the worker's step would take time in proportion to the length of the lists.
    """

    def __post_init__(self) -> None:
        """Check numbers alone."""
        self._check_numbers()


SAMPLING_FIELDS = sampling_fields(SamplingParams)
NUMBERS = tuple(field for field in SAMPLING_FIELDS.values() if field.is_number)
# help() and editors show the declarations.
SamplingParams.__doc__ = (SamplingParams.__doc__ or "") + "\n    ".join(
    ["", *(f"{field.name}: {field.declared.help}." for field in SAMPLING_FIELDS.values()), ""]
)


def _check_kind(name: str, value: object, kinds: type | tuple[type, ...]) -> None:
    if value is not None and not isinstance(value, kinds):
        raise ValueError(f"{name}: must be an object, not {type(value).__name__}")


def _check_salt(value: object) -> None:
    if value is not None and not (isinstance(value, str) and 1 <= len(value) <= MAX_CACHE_SALT):
        raise ValueError(f"cache_salt: must be a text of 1 to {MAX_CACHE_SALT} characters")


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
        check_integer(f"{name}.{index}", token, 0, MAX_INTEGER)


def _check_stop(stop: object) -> None:
    if stop is None:
        return
    if not isinstance(stop, list) or len(stop) > MAX_STOP_STRINGS:
        raise ValueError(f"stop: must be a string or a list of at most {MAX_STOP_STRINGS} strings")
    for index, text in enumerate(stop):
        if not isinstance(text, str) or not text:
            raise ValueError(f"stop.{index}: must be a string that is not empty")
        _check_size(f"stop.{index}", text, MAX_STOP_CHARACTERS, "characters")
