"""Builtins against repeated runs of tokens: a ban and a penalty that grows with the repetition."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.bans import TokenBanProcessor
from fastdeploy_lp.logits_processor.builtin.slot_processor import SlotProcessor
from fastdeploy_lp.logits_processor.builtin.token_lists import ListedToken
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig

Int64s = NDArray[np.int64]

Size = Annotated[int, Field(strict=True, ge=0, le=1024)]


class NoRepeatNGramParams(BaseModel):
    """`no_repeat_ngram_size`: number of tokens in a run, 1 to 1024; 0 rules out nothing."""

    model_config = ConfigDict(extra="forbid")

    no_repeat_ngram_size: Size | None = None


class NoRepeatNGramLogitsProcessor(TokenBanProcessor["RepeatedNGrams"]):
    """`{"no_repeat_ngram_size": n}` sets tokens to -inf that would repeat a run of n tokens.

    Runs in prompt and output count. From Paulus et al., 2017, "A Deep Reinforced Model for Abstractive Summarization"
    (arXiv:1705.04304), as in Hugging Face.
    """

    Params = NoRepeatNGramParams

    def _build(self, request: SlotRequest) -> RepeatedNGrams | None:
        size = request.args.get("no_repeat_ngram_size")
        return RepeatedNGrams(size, request.prompt, request.output) if size else None

    def _banned(self, state: RepeatedNGrams) -> Int64s:
        return state.completing()


class RepeatedNGrams:
    """Every run of `size - 1` tokens of prompt and live output, with the tokens that followed it."""

    def __init__(self, size: int, prompt: Sequence[int], output: Sequence[int]) -> None:
        self._size = size
        self._output = output
        # The last `size - 1` tokens read.
        self._tail: tuple[int, ...] = ()
        self._behind: dict[tuple[int, ...], dict[int, None]] = {}
        self._seen = 0
        self._take(prompt)

    def completing(self) -> Int64s:
        """Returns the tokens that would complete a run of `size` tokens for a second time, each once."""
        self._take(self._output[self._seen :])
        self._seen = len(self._output)
        if len(self._tail) < self._size - 1:
            return np.empty(0, np.int64)
        behind = self._behind.get(self._tail, {})
        return np.fromiter(behind, np.int64, len(behind))

    def _take(self, tokens: Sequence[int]) -> None:
        length = self._size - 1
        for token in tokens:
            if len(self._tail) == length:
                self._behind.setdefault(self._tail, {})[token] = None
            self._tail = (*self._tail, token)[-length:] if length else ()


Multiplier = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=1e6)]
Base = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=1, le=1000)]
Length = Annotated[int, Field(strict=True, ge=1, le=1024)]
Window = Annotated[int, Field(strict=True, ge=-1, le=2**31)]
# Far above any logit, and far below the limit of float32.
MAX_LOG = math.log(1e9)


class DRYParams(BaseModel):
    """Definition and cost of a repetition.

    `dry_multiplier`: strength, 0 for none. `dry_base`: growth factor per token. `dry_allowed_length`: length of the
    longest repetition that costs nothing. `dry_sequence_breakers`: token ids that no repetition spans.
    `dry_penalty_last_n`: number of last tokens to search, -1 for all, 0 for none.
    """

    model_config = ConfigDict(extra="forbid")

    dry_multiplier: Multiplier
    dry_base: Base = 1.75
    dry_allowed_length: Length = 2
    dry_sequence_breakers: Annotated[list[ListedToken], Field(max_length=4096)] = []
    dry_penalty_last_n: Window = -1


NAMES = tuple(DRYParams.model_fields)


@dataclass(frozen=True)
class _Watched:
    repetitions: RepetitionLengths
    allowed: int
    log_multiplier: float
    log_base: float


class DRYLogitsProcessor(SlotProcessor[_Watched]):
    """`{"dry_multiplier": m}` subtracts m * base ** (n - allowed) from each token that would continue a repetition.

    n is the length of the longest run of tokens that ends prompt and output and also occurs earlier, followed by that
    token; runs of fewer than `dry_allowed_length` tokens cost nothing. "Don't repeat yourself" by p-e-w, 2024, as in
    text-generation-webui and llama.cpp; breakers are token ids here.
    """

    Params = DRYParams
    keeps_rows_valid = True

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        self._rows = self._tokens = np.empty(0, np.int64)
        self._values = np.empty(0, np.float32)

    def _build(self, request: SlotRequest) -> _Watched | None:
        if not request.args.get("dry_multiplier"):
            return None
        given = DRYParams.model_construct(**{name: request.args[name] for name in NAMES if name in request.args})
        if given.dry_penalty_last_n == 0:
            return None
        window, breakers = max(given.dry_penalty_last_n, 0), given.dry_sequence_breakers
        repetitions = RepetitionLengths(request.prompt, request.output, breakers, window)
        return _Watched(repetitions, given.dry_allowed_length, math.log(given.dry_multiplier), math.log(given.dry_base))

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:  # noqa: ARG002 - every step differs
        found = [(state, *state.repetitions.continuations(state.allowed)) for state in self._slots.states]
        self._rows = np.repeat(self._slots.rows, np.array([len(tokens) for _, tokens, _ in found], np.int64))
        self._tokens = np.concatenate([tokens for _, tokens, _ in found] or [self._rows])
        logs = [state.log_multiplier + state.log_base * (lengths - state.allowed) for state, _, lengths in found]
        self._values = -np.exp(np.minimum(np.concatenate(logs or [np.empty(0)]), MAX_LOG)).astype(np.float32)

    def _edit(self, logits: Tensor) -> None:
        if self._tokens.size:
            self._edits.add(logits, self._rows, self._tokens, self._values)


class RepetitionLengths:
    """For every place in prompt and live output: the number of tokens up to it that equal the text's last ones.

    A breaker ends such a run: no run holds one. With `window` above 0, only that many last tokens count. The cost of a
    step depends on the number of places of the text's last token, not on the text's length.
    """

    def __init__(self, prompt: Sequence[int], output: Sequence[int], breakers: Collection[int], window: int) -> None:
        self._output, self._seen = output, 0
        self._breakers, self._window = frozenset(breakers), window
        self._text = list(prompt)
        self._places: dict[int, list[int]] = {}
        for place, token in enumerate(self._text):
            self._places.setdefault(token, []).append(place)
        # By place; only runs of at least one token, without the end of the text itself.
        self._runs = self._count_runs()

    def continuations(self, at_least: int) -> tuple[Int64s, Int64s]:
        """Returns distinct tokens that continue a repetition of `at_least` tokens (1 or more), and its length."""
        for token in self._output[self._seen :]:
            self._take(token)
        self._seen = len(self._output)
        begin = max(0, len(self._text) - self._window) if self._window else 0
        longest: dict[int, int] = {}
        for place, run in self._runs.items():
            within = min(run, place - begin + 1)
            if within >= at_least:
                token = self._text[place + 1]
                longest[token] = max(longest.get(token, 0), within)
        count = len(longest)
        return np.fromiter(longest, np.int64, count), np.fromiter(longest.values(), np.int64, count)

    def _take(self, token: int) -> None:
        """Appends a token: a run up to its place is one longer than the old run up to the place before."""
        places = self._places.setdefault(token, [])
        before = self._runs
        self._runs = {} if token in self._breakers else {place: before.get(place - 1, 0) + 1 for place in places}
        places.append(len(self._text))
        self._text.append(token)

    def _count_runs(self) -> dict[int, int]:
        """Counts all runs of the text at once, backwards: a place drops out where its tokens differ from the end's."""
        runs: dict[int, int] = {}
        last = len(self._text) - 1
        places = self._places[self._text[last]][:-1] if self._text else []
        back = 0
        while places and self._text[last - back] not in self._breakers:
            for place in places:
                runs[place] = back + 1
            back += 1
            places = [
                place for place in places if place >= back and self._text[place - back] == self._text[last - back]
            ]
        return runs
