"""Builtins that write a phrase when the model is about to end, is unsure, or is about to write another phrase."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fastdeploy_lp.logits_processor.builtin.marker_finder import MarkerFinder
from fastdeploy_lp.logits_processor.builtin.watched_phrase import (
    WatchedPhraseProcessor,
    WatchedRequest,
    greatest_is_one_of,
)
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest
from fastdeploy_lp.logits_processor.token_arguments import Marker, Phrase
from fastdeploy_lp.platforms import to_device

if TYPE_CHECKING:
    from paddle import Tensor


class ForceLastPhraseParams(BaseModel):
    """`last_phrase`: the phrase that the output contains before it ends, a text or token ids."""

    model_config = ConfigDict(extra="forbid", strict=True)

    last_phrase: Phrase | None


class ForceLastPhraseLogitsProcessor(WatchedPhraseProcessor):
    """`{"last_phrase": "Sources:"}` writes the phrase when the model is about to end, and lets it continue from there.

    The phrase begins when an end-of-sequence or stop token is the most likely one. Before the phrase such tokens are
    ruled out, so that they cannot be sampled. From logits-processor-zoo.
    """

    Params = ForceLastPhraseParams

    def _build(self, request: SlotRequest) -> WatchedRequest | None:
        phrase = request.args.get("last_phrase")
        ends = [*self._eos_token_ids, *((request.params and request.params.stop_token_ids) or ())]
        if not phrase or not ends:
            return None
        state = WatchedRequest(request, phrase)
        state.banned = ends
        return state

    def sign_in(self, row: NDArray[Any], state: WatchedRequest) -> bool:
        """See the base class."""
        return int(row.argmax()) in state.banned

    def signs_on_device(self, rows: Tensor, states: Sequence[WatchedRequest]) -> Tensor:
        """See the base class."""
        return greatest_is_one_of(rows, [state.banned for state in states])


DEFAULT_MIN_P, DEFAULT_TOLERATE = 0.4, 1
PIECE = 8192


class LowConfidenceFallbackParams(BaseModel):
    """`fallback_phrase`: the phrase to write, a text or token ids.

    fallback_min_p: a step is unsure if its most likely token is less likely than this. fallback_tolerate: number of
    unsure steps that are tolerated.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    fallback_phrase: Phrase | None
    fallback_min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = DEFAULT_MIN_P
    fallback_tolerate: Annotated[int, Field(ge=0)] = DEFAULT_TOLERATE


class LowConfidenceFallbackLogitsProcessor(WatchedPhraseProcessor):
    """`{"fallback_phrase": "I do not know."}` writes the phrase once when more steps were unsure than are tolerated.

    logits-processor-zoo calls it PreventHallucination. Probabilities are computed from the processor's input logits at
    temperature 1.
    """

    Params = LowConfidenceFallbackParams

    def _build(self, request: SlotRequest) -> WatchedRequest | None:
        return _Doubts(request) if request.args.get("fallback_phrase") else None

    def sign_in(self, row: NDArray[Any], state: _Doubts) -> bool:
        """See the base class."""
        greatest, weight = row.max(), np.float32(0.0)
        if not np.isfinite(greatest) or state.min_p <= 0:
            return False  # the guard handles rows without a usable logit
        # In pieces that stay in the CPU cache; most unsure rows are detected in the first one.
        for begin in range(0, len(row), PIECE):
            weights = np.subtract(row[begin : begin + PIECE], greatest, dtype=np.float32)
            weight += np.exp(weights, out=weights).sum()
            if state.min_p * weight > 1.0:
                return True
        return False

    def signs_on_device(self, rows: Tensor, states: Sequence[_Doubts]) -> Tensor:
        """See the base class."""
        import paddle

        likeliest = paddle.nn.functional.softmax(rows, axis=-1).max(axis=-1)
        return likeliest < to_device(np.array([state.min_p for state in states], np.float32))


class _Doubts(WatchedRequest):
    """Counts a request's unsure steps."""

    def __init__(self, request: SlotRequest) -> None:
        super().__init__(request, request.args["fallback_phrase"])
        self.min_p: float = request.args.get("fallback_min_p", DEFAULT_MIN_P)
        self._tolerated: int = request.args.get("fallback_tolerate", DEFAULT_TOLERATE)

    @property
    def armed(self) -> bool:
        """True if no further unsure step is tolerated."""
        return self._tolerated <= 0

    def note(self) -> None:
        """Counts one more unsure step."""
        self._tolerated -= 1


class TriggerPhraseParams(BaseModel):
    """`trigger_phrase`: the phrase to write, a text or token ids. It needs one or both of two triggers:

    trigger_on: a text or token ids; trigger_after_seconds: a time from the request's first token, which triggers once.
    trigger_after: true writes the phrase after `trigger_on`, false instead of it, which requires a trigger of one
    token. trigger_count: maximum number of times it is written.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    trigger_phrase: Phrase | None
    trigger_on: Marker | None = None
    trigger_after: bool = False
    trigger_count: Annotated[int, Field(ge=1)] = 1
    trigger_after_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None

    @model_validator(mode="after")
    def _has_a_trigger(self) -> TriggerPhraseParams:
        if self.trigger_on is None and self.trigger_after_seconds is None and self.trigger_phrase is not None:
            raise ValueError("nothing triggers the phrase; give trigger_on or trigger_after_seconds")
        if self.trigger_on is not None and not self.trigger_after and not _single(self.trigger_on):
            raise ValueError("trigger_on is more than one token; it can be followed only, with trigger_after = true")
        return self


class TriggerPhraseLogitsProcessor(WatchedPhraseProcessor):
    """`{"trigger_phrase": "Wait,", "trigger_on": "</think>"}` writes a phrase when the model is about to write another.

    With `trigger_after` the phrase follows the trigger. Without it, the phrase replaces a trigger of one token when
    that is the most likely token; until then the trigger cannot be sampled. From logits-processor-zoo.
    """

    Params = TriggerPhraseParams
    clock: Callable[[], float] = staticmethod(time.monotonic)

    def _build(self, request: SlotRequest) -> WatchedRequest | None:
        return _Trigger(request, self.clock) if request.args.get("trigger_phrase") else None

    def sign_in(self, row: NDArray[Any], state: WatchedRequest) -> bool:
        """See the base class."""
        return bool(state.banned) and int(row.argmax()) in state.banned

    def signs_on_device(self, rows: Tensor, states: Sequence[WatchedRequest]) -> Tensor:
        """See the base class."""
        return greatest_is_one_of(rows, [state.banned for state in states])


class _Trigger(WatchedRequest):
    """Triggers of one request: a token in the logits, a text in the output, or a time."""

    def __init__(self, request: SlotRequest, clock: Callable[[], float]) -> None:
        args = request.args
        super().__init__(request, args["trigger_phrase"], times=args.get("trigger_count", 1))
        on, after = args.get("trigger_on") or [], args.get("trigger_after", False)
        self.banned = [] if after else _single(on)
        self._finder = MarkerFinder(on if after else [])
        self._seen = self._written_until = 0
        seconds = args.get("trigger_after_seconds")
        self._clock, self._deadline = clock, None if seconds is None else clock() + seconds
        if after and request.output:
            self._replay(args.get("trigger_count", 1))

    @property
    def watches(self) -> bool:
        """True if the row is checked in this step; without `banned` tokens it can show no sign."""
        return bool(self.banned) and super().watches

    def advance(self) -> None:
        """Looks for the trigger in the tokens of the last step, and checks the clock."""
        if self.start is not None:
            self._written_until = self._seen = self.start + len(self.phrase)
            return
        if self.left <= 0:
            return
        length = len(self.output)
        while self._seen < length:
            self._seen += 1
            if self._finder.ends(self.output, self._seen, self._written_until):
                self.start = length
        if self._deadline is not None and self._clock() >= self._deadline:
            self._deadline, self.start = None, length
        if self.start is not None:
            self._written_until = self._seen = self.start + len(self.phrase)

    def _replay(self, times: int) -> None:
        """Finds phrases written before: each directly follows a trigger in the output."""
        self.left, self.start, at, free = times, None, 0, 0
        while self.left and at < len(self.output):
            at += 1
            if self._finder.ends(self.output, at, free):
                self.start, at = at, at + len(self.phrase)
                free = at
                if at <= len(self.output):
                    self.start, self.left = None, self.left - 1
        self._seen, self._written_until = min(at, len(self.output)), free


def _single(forms: Sequence[Sequence[int]]) -> list[int]:
    return [form[0] for form in forms if len(form) == 1]
