"""Builtins that write a phrase when the logits or the output show a sign."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chat import encode
from support.churned import DTYPES, EOS, VOCAB_SIZE, Churn, Row, Slots, crowds, only

from fastdeploy_lp.logits_processor import RequestArgsError, RequestArgsValidator, load_processors
from fastdeploy_lp.logits_processor.builtin.phrases import (
    ForceLastPhraseLogitsProcessor,
    LowConfidenceFallbackLogitsProcessor,
    TriggerPhraseLogitsProcessor,
)
from fastdeploy_lp.request.sampling_params import SamplingParams

tokens = st.integers(2, VOCAB_SIZE - 1)
last_phrases = st.fixed_dictionaries({"last_phrase": st.none() | st.lists(tokens, min_size=1, max_size=4)})


class LastPhrase:
    def __init__(self, args: dict[str, Any], prompt: list[int]) -> None:
        self.phrase = args["last_phrase"]
        self.start: int | None = None

    def __call__(self, logits: Row, output: list[int]) -> Row:
        if self.phrase is None:
            return logits
        if self.start is None:
            if logits.argmax() != EOS:
                logits[EOS] = -np.inf
                return logits
            self.start = len(output)
        written = len(output) - self.start
        return only(logits, self.phrase[written]) if written < len(self.phrase) else logits


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25)
@given(crowds(last_phrases), st.integers(0, 2**20))
def test_force_last_phrase(dtype: str, crowd: Any, seed: int) -> None:
    Churn(ForceLastPhraseLogitsProcessor, crowd, LastPhrase, seed=seed, dtype=dtype).run()


def wants_the_end() -> np.ndarray:
    logits = np.zeros((1, VOCAB_SIZE), np.float32)
    logits[0, EOS] = 5.0
    return logits


def test_a_new_instance_goes_on_with_a_phrase_that_another_has_begun() -> None:
    """As after a fault, when what was seen is gone and only the tokens are left."""
    for written, expected in (([9, 6, 7], 8), ([9, 6, 7, 8], None), ([6, 7, 8, 9], None)):
        slots = Slots(ForceLastPhraseLogitsProcessor)
        slots.enter(0, [5], {"last_phrase": [6, 7, 8]}, written)
        (row,) = slots.step(wants_the_end())
        assert np.flatnonzero(row > -np.inf).tolist() == ([expected] if expected else list(range(VOCAB_SIZE)))


def test_a_first_token_that_was_not_taken_does_not_begin_the_phrase() -> None:
    slots = Slots(ForceLastPhraseLogitsProcessor)
    slots.enter(0, [5], {"last_phrase": [6, 7]})
    (row,) = slots.step(wants_the_end())
    assert np.flatnonzero(row > -np.inf).tolist() == [6]
    # A processor behind it wanted something else.
    slots.sample({0: 11})
    (row,) = slots.step(np.zeros((1, VOCAB_SIZE), np.float32))
    assert np.flatnonzero(row == -np.inf).tolist() == [EOS]


def test_a_stop_token_is_an_end_as_well() -> None:
    slots = Slots(ForceLastPhraseLogitsProcessor)
    slots.enter(0, [5], {"last_phrase": [6, 7]})
    made = slots.leave(0)
    made.params.stop_token_ids = [12]
    slots.take(0, made)
    logits = np.zeros((1, VOCAB_SIZE), np.float32)
    logits[0, 12] = 1.0
    (row,) = slots.step(logits)
    assert np.flatnonzero(row > -np.inf).tolist() == [6]


fallbacks = st.fixed_dictionaries(
    {"fallback_phrase": st.none() | st.lists(tokens, min_size=1, max_size=4)},
    optional={"fallback_min_p": st.sampled_from([0.0, 0.2, 0.5, 0.9]), "fallback_tolerate": st.integers(0, 6)},
)


class Fallback:
    def __init__(self, args: dict[str, Any], prompt: list[int]) -> None:
        self.args, self.phrase = args, args["fallback_phrase"]
        self.unsure = 0
        self.start: int | None = None

    def __call__(self, logits: Row, output: list[int]) -> Row:
        if self.phrase is None:
            return logits
        if self.start is None:
            weights = np.exp(logits.astype(np.float64))
            self.unsure += (weights / weights.sum()).max() < self.args.get("fallback_min_p", 0.4)
            if self.unsure <= self.args.get("fallback_tolerate", 1):
                return logits
            self.start = len(output)
        written = len(output) - self.start
        return only(logits, self.phrase[written]) if written < len(self.phrase) else logits


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25)
@given(crowds(fallbacks), st.integers(0, 2**20))
def test_low_confidence_fallback(dtype: str, crowd: Any, seed: int) -> None:
    Churn(LowConfidenceFallbackLogitsProcessor, crowd, Fallback, seed=seed, dtype=dtype).run()


def test_a_row_without_a_usable_logit_is_left_to_the_guard() -> None:
    slots = Slots(LowConfidenceFallbackLogitsProcessor)
    slots.enter(0, [5], {"fallback_phrase": [6], "fallback_tolerate": 0})
    (row,) = slots.step(np.full((1, VOCAB_SIZE), -np.inf, np.float32))
    assert np.all(row == -np.inf)


few = st.integers(2, 6)
phrases = st.lists(st.integers(2, VOCAB_SIZE - 1), min_size=1, max_size=4)
counts = {"trigger_count": st.integers(1, 3)}
in_place = st.fixed_dictionaries(
    {"trigger_phrase": phrases, "trigger_on": st.lists(few.map(lambda token: [token]), min_size=1, max_size=2)},
    optional=counts,
)
behind = st.fixed_dictionaries(
    {
        "trigger_phrase": phrases,
        "trigger_on": st.lists(st.lists(few, min_size=1, max_size=2), min_size=1, max_size=2),
        "trigger_after": st.just(True),
    },
    optional=counts,
)


class Clock:
    """Goes on when it is told to."""

    now = 0.0

    def tick(self) -> None:
        self.now += 1.0

    def __call__(self) -> float:
        return self.now


class Triggered:
    """Remembers where every phrase began."""

    def __init__(self, args: dict[str, Any], clock: Clock) -> None:
        self.phrase, self.on = args["trigger_phrase"], args.get("trigger_on", [])
        self.behind, self.left = args.get("trigger_after", False), args.get("trigger_count", 1)
        self.starts: list[int] = []
        self.clock = clock
        self.deadline = clock.now + args.get("trigger_after_seconds", np.inf)

    def __call__(self, logits: Row, output: list[int]) -> Row:
        free = self.starts[-1] + len(self.phrase) if self.starts else 0
        if len(output) < free:
            return only(logits, self.phrase[len(output) - self.starts[-1]])
        if len(self.starts) < self.left and self._triggered(logits, output[free:]):
            self.starts.append(len(output))
            return only(logits, self.phrase[0])
        if len(self.starts) < self.left and not self.behind:
            logits[[token for (token,) in self.on]] = -np.inf
        return logits

    def _triggered(self, logits: Row, since: list[int]) -> bool:
        if self.clock.now >= self.deadline:
            self.deadline = np.inf
            return True
        if self.behind:
            return any(since[-len(form) :] == form for form in self.on)
        return [int(logits.argmax())] in self.on


def run(crowd: Any, seed: int, dtype: str) -> None:
    clock = Clock()
    cls = type("Trigger", (TriggerPhraseLogitsProcessor,), {"clock": clock})
    Churn(cls, crowd, lambda args, _: Triggered(args, clock), seed=seed, dtype=dtype, tick=clock.tick).run()


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25)
@given(crowds(in_place | behind), st.integers(0, 2**20))
def test_trigger_phrase(dtype: str, crowd: Any, seed: int) -> None:
    run(crowd, seed, dtype)


timed = st.tuples(in_place | behind, st.integers(0, 20)).map(
    lambda both: {**both[0], "trigger_after_seconds": float(both[1])}
)
only_timed = st.fixed_dictionaries({"trigger_phrase": phrases, "trigger_after_seconds": st.integers(0, 20).map(float)})


@settings(max_examples=25)
@given(crowds(timed | only_timed), st.integers(0, 2**20))
def test_a_time_triggers_once(crowd: Any, seed: int) -> None:
    run(crowd, seed, "float32")


def test_a_new_instance_knows_from_the_output_where_phrases_were_written_behind_their_trigger() -> None:
    args = {"trigger_phrase": [7, 8, 9], "trigger_on": [[2, 3]], "trigger_after": True, "trigger_count": 2}
    for output, expected in (
        ([2, 3], 7),
        ([2, 3, 7], 8),
        ([2, 3, 7, 8, 9], None),
        ([2, 3, 7, 8, 9, 2, 3], 7),
        ([2, 3, 7, 8, 9, 2, 3, 7, 8, 9, 2, 3], None),
    ):
        slots = Slots(TriggerPhraseLogitsProcessor)
        slots.enter(0, [5], args, output)
        assert slots.forces() == [expected]


def test_a_trigger_that_begins_in_the_written_phrase_is_none() -> None:
    slots = Slots(TriggerPhraseLogitsProcessor)
    args = {"trigger_phrase": [7, 2], "trigger_on": [[2, 3]], "trigger_after": True, "trigger_count": 2}
    slots.enter(0, [5], args)
    forced = []
    for token in (2, 3, 7, 2, 3, 2, 3):
        forced += slots.forces()
        slots.sample({0: token})
    assert [*forced, *slots.forces()] == [None, None, 7, 2, None, None, None, 7]


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ({"trigger_phrase": "Wait"}, "nothing triggers"),
        ({"trigger_phrase": "Wait", "trigger_on": "</think>"}, "trigger_after = true"),
        ({"trigger_on": "."}, "Field required"),
        ({"trigger_phrase": "Wait", "trigger_on": ".", "trigger_count": 0}, "greater than or equal to 1"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused(args: dict[str, Any], reason: str) -> None:
    checks = RequestArgsValidator(load_processors(["TriggerPhraseLogitsProcessor"]), 49152, encode)
    with pytest.raises(RequestArgsError, match=reason) as caught:
        checks.validate(SamplingParams(logits_processors_args=args))
    assert caught.value.path.startswith("logits_processors_args.trigger_")
