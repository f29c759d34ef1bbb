"""Writes a phrase after, or instead of, another one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fastdeploy_lp.logits_processor.builtin.marker_finder import MarkerFinder
from fastdeploy_lp.logits_processor.builtin.watched_phrase import (
    WatchedPhraseProcessor,
    WatchedRequest,
    greatest_is_one_of,
)
from fastdeploy_lp.logits_processor.phrase import Marker, Phrase
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest

if TYPE_CHECKING:
    from paddle import Tensor


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

    def state_of(self, request: SlotRequest) -> WatchedRequest | None:
        """See the base class."""
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
