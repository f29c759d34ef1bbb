"""Builtins that force tokens: a prefix, the end after a time, the end of reasoning."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chat import decode, encode
from support.churned import DTYPES, EOS, VOCAB_SIZE, Churn, Row, Slots, crowds, only

from fastdeploy_lp.logits_processor import RequestArgsError, RequestArgsValidator, load_processors
from fastdeploy_lp.logits_processor.builtin.forcing import (
    ForcedSequenceLogitsProcessor,
    MaxTimeLogitsProcessor,
    ThinkingBudgetLogitsProcessor,
)
from fastdeploy_lp.request.sampling_params import SamplingParams

tokens = st.integers(2, VOCAB_SIZE - 1)
sequences = st.fixed_dictionaries({"forced_sequence": st.none() | st.lists(tokens, min_size=1, max_size=6)})


def beginning(args: dict[str, Any], prompt: list[int]) -> Any:
    sequence = args["forced_sequence"] or []

    def row(logits: Row, output: list[int]) -> Row:
        return only(logits, sequence[len(output)]) if len(output) < len(sequence) else logits

    return row


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25)
@given(crowds(sequences), st.integers(0, 2**20))
def test_forced_sequence(dtype: str, crowd: Any, seed: int) -> None:
    Churn(ForcedSequenceLogitsProcessor, crowd, beginning, seed=seed, dtype=dtype).run()


def test_the_logits_are_edited_in_place_and_only_when_something_is_forced() -> None:
    slots = Slots(ForcedSequenceLogitsProcessor)
    slots.enter(0, [5], {"forced_sequence": [7, 3]})
    slots.enter(2, [5], {})
    assert slots.forces() == [7, None]
    slots.sample({0: 7, 2: 9})
    assert slots.forces() == [3, None]
    slots.sample({0: 3, 2: 9})
    assert slots.forces() == [None, None]


time_arguments = st.fixed_dictionaries(
    {"max_time": st.none() | st.integers(0, 20).map(float)},
    optional={"max_time_complete_sentences": st.lists(tokens, max_size=8)},
)


class Clock:
    """Goes on when it is told to."""

    now = 0.0

    def tick(self) -> None:
        self.now += 1.0

    def __call__(self) -> float:
        return self.now


def with_clock(clock: Clock) -> type[MaxTimeLogitsProcessor]:
    return type("MaxTime", (MaxTimeLogitsProcessor,), {"clock": clock})


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25)
@given(crowds(time_arguments), st.integers(0, 2**20))
def test_max_time(dtype: str, crowd: Any, seed: int) -> None:
    clock = Clock()

    def reference(args: dict[str, Any], prompt: list[int]) -> Any:
        began, ends = clock.now, args.get("max_time_complete_sentences")

        def row(logits: Row, output: list[int]) -> Row:
            if args["max_time"] is None or clock.now < began + args["max_time"]:
                return logits
            return logits if ends and output and output[-1] not in ends else only(logits, EOS)

        return row

    Churn(with_clock(clock), crowd, reference, seed=seed, dtype=dtype, tick=clock.tick).run()


def test_a_preempted_request_keeps_its_clock() -> None:
    clock = Clock()
    slots = Slots(with_clock(clock))
    slots.enter(0, [5], {"max_time": 2.0})
    assert slots.forces() == [None]
    clock.tick()
    preempted = slots.leave(0)
    slots.enter(0, [5], {"max_time": 2.0})
    assert slots.forces() == [None]
    clock.tick()
    slots.take(3, preempted)
    assert slots.forces() == [None, EOS]


START, END = 14, 15
SINGLE: dict[str, Any] = {"think_start": [[START]], "think_end": [[END]]}

forms = st.lists(st.lists(st.integers(2, 5), min_size=1, max_size=3), min_size=1, max_size=2)
arguments = st.fixed_dictionaries(
    {"thinking_budget": st.integers(0, 8)},
    optional={"think_stop_sentence": st.lists(tokens, min_size=1, max_size=4)},
).flatmap(
    lambda args: (
        st.tuples(forms, forms).map(lambda both: {**args, "think_start": both[0], "think_end": both[1]})
        | st.just({**args, **SINGLE})
    )
)


def ends_with(tokens: list[int], forms: list[list[int]]) -> bool:
    return any(tokens[-len(form) :] == form for form in forms)


def forced(args: dict[str, Any], prompt: list[int], output: list[int]) -> int | None:
    """All of the rules, from all of the tokens."""
    starts, ends = args["think_start"], args["think_end"]
    sentence = args.get("think_stop_sentence", [])
    free = max(0, args["thinking_budget"] - len(sentence))
    states = [
        ends_with(prompt[:at], starts) and not ends_with(prompt[:at], ends)
        for at in range(1, len(prompt) + 1)
        if ends_with(prompt[:at], starts) or ends_with(prompt[:at], ends)
    ]
    begun = 0 if states and states[-1] else None
    for at in range(len(output) + 1):
        thought = output[begun:at] if begun is not None else []
        if begun is None and at and ends_with(prompt + output[:at], starts):
            begun, thought = at, []
        elif begun is not None and ends_with(thought, ends):
            return None
        if begun is not None and len(thought) >= free:
            longest = max(map(len, ends))
            held = [
                form[count:]
                for count in range(longest, 0, -1)
                for form in ends
                if len(form) > count and thought[-count:] == form[:count]
            ]
            script = held[0] if held else [*sentence, *ends[0]]
            return script[len(output) - at] if len(output) - at < len(script) else None
    return None


def reference(args: dict[str, Any], prompt: list[int]) -> Any:
    def row(logits: Row, output: list[int]) -> Row:
        token = forced(args, prompt, output)
        return logits if token is None else only(logits, token)

    return row


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=40)
@given(crowds(arguments), st.integers(0, 2**20))
def test_thinking_budget(dtype: str, crowd: Any, seed: int) -> None:
    Churn(ThinkingBudgetLogitsProcessor, crowd, reference, seed=seed, dtype=dtype).run()


class Thinker:
    """One request; `says` samples tokens and gives what is forced next."""

    def __init__(self, prompt: list[int], output: list[int] | None = None, **args: Any) -> None:
        self.slots = Slots(ThinkingBudgetLogitsProcessor)
        self.slots.enter(0, prompt, {**SINGLE, **args}, output or [])

    def says(self, *tokens: int) -> int | None:
        for token in tokens:
            self.slots.forces()
            self.slots.sample({0: token})
        (forced,) = self.slots.forces()
        return forced


# FastDeploy's own cases, as far as they are about behaviour; it writes no newline and counts no prompt tokens any more.


def test_a_budget_that_is_not_reached_changes_nothing() -> None:
    thinker = Thinker([2, START, 3, 4, 5], thinking_budget=5)
    assert [thinker.says(), thinker.says(4), thinker.says(5)] == [None] * 3


def test_a_budget_that_is_reached_forces_the_end_and_then_nothing() -> None:
    thinker = Thinker([2, START], thinking_budget=3)
    assert [thinker.says(), thinker.says(5), thinker.says(6)] == [None] * 3
    assert thinker.says(7) == END
    assert [thinker.says(END), thinker.says(3), thinker.says(START), thinker.says(3, 4, 5, 6)] == [None] * 4


def test_a_stop_sentence_is_part_of_the_budget() -> None:
    thinker = Thinker([START], thinking_budget=10, think_stop_sentence=[3, 4, 5])
    assert thinker.says(*[9] * 6) is None
    assert [thinker.says(9), thinker.says(3), thinker.says(4), thinker.says(5)] == [3, 4, 5, END]
    assert thinker.says(END) is None


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_a_budget_smaller_than_the_sentence_writes_it_at_once_and_whole(budget: int) -> None:
    thinker = Thinker([START], thinking_budget=budget, think_stop_sentence=[3, 4, 5])
    assert [thinker.says(), thinker.says(3), thinker.says(4), thinker.says(5)] == [3, 4, 5, END]


def test_a_budget_used_up_without_a_sentence_forces_the_end() -> None:
    assert Thinker([START], [9], thinking_budget=1).says() == END


def test_no_budget_at_all_forces_the_end_at_the_first_step() -> None:
    assert Thinker([START], thinking_budget=0).says() == END


def test_reasoning_may_begin_in_the_output() -> None:
    thinker = Thinker([2, 3], thinking_budget=2)
    assert thinker.says(9, 9, 9, 9) is None
    assert [thinker.says(START), thinker.says(5), thinker.says(6)] == [None, None, END]


def test_reasoning_that_ended_in_the_prompt_is_left_alone() -> None:
    assert Thinker([START, 5, END], thinking_budget=0).says(3, 4, 5) is None


def test_a_later_turn_of_the_conversation_may_reason_again() -> None:
    assert Thinker([START, 5, END, 9, START], thinking_budget=1).says(4) == END
    assert Thinker([START, 5, END, 9], thinking_budget=1).says(START, 4) == END


def test_without_a_budget_nothing_is_touched() -> None:
    assert Thinker([START], thinking_budget=None).says(3, 4, 5) is None


def test_of_several_requests_only_those_with_a_budget_are_ended() -> None:
    slots = Slots(ThinkingBudgetLogitsProcessor)
    for slot, args in enumerate([{"thinking_budget": 2, **SINGLE}, {}, {"thinking_budget": 1, **SINGLE}]):
        slots.enter(slot, [START], args)
    slots.forces()
    slots.sample({0: 5, 1: 5, 2: 5})
    assert slots.forces() == [None, None, END]
    slots.sample({0: 5, 1: 5, 2: END})
    assert slots.forces() == [END, None, None]


def test_a_request_that_left_leaves_nothing_behind() -> None:
    slots = Slots(ThinkingBudgetLogitsProcessor)
    slots.enter(0, [START], {"thinking_budget": 0, **SINGLE})
    assert slots.forces() == [END]
    slots.leave(0)
    slots.enter(0, [START], {})
    assert slots.forces() == [None]
    slots.leave(0)
    slots.enter(0, [START], {"thinking_budget": 3, **SINGLE})
    assert slots.forces() == [None]


def test_markers_of_several_tokens_are_found_across_steps_and_across_the_prompts_end() -> None:
    several = {"think_start": [[3, 4]], "think_end": [[5, 6, 7]], "thinking_budget": 2}
    assert Thinker([9, 3], **several).says(4, 9, 9) == 5
    assert Thinker([9, 3], **several).says(9, 9, 9, 3) is None
    thinker = Thinker([9, 3, 4], **several)
    assert [thinker.says(9, 9), thinker.says(5), thinker.says(6), thinker.says(7)] == [5, 6, 7, None]


def test_an_end_that_the_model_has_begun_is_completed() -> None:
    several = {"think_start": [[3, 4]], "think_end": [[5, 6, 7]], "thinking_budget": 2}
    thinker = Thinker([3, 4], think_stop_sentence=[9], **{**several, "thinking_budget": 3})
    assert [thinker.says(2), thinker.says(5), thinker.says(6), thinker.says(7)] == [None, 6, 7, None]


def test_markers_are_texts_that_are_found_in_what_the_model_writes() -> None:
    """As the API process settles them for the default model, whose markers are several tokens."""
    checks = RequestArgsValidator(load_processors(["ThinkingBudgetLogitsProcessor"]), 49152, encode)
    args = checks.validate(SamplingParams(logits_processors_args={"thinking_budget": 4})).flat
    assert (decode(*args["think_start"][0]), decode(*args["think_end"][0])) == ("<think>", "</think>")
    for prompt, output in (("Hi", "Well (<think>\n\nOne two"), ("x <think>", "one two."), ("a\n<think>\n", "One, two")):
        tokens = encode(output)
        found = [forced(args, encode(prompt), tokens[:at]) for at in range(len(tokens))]
        more = tokens + [0] * 4
        assert any(forced(args, encode(prompt), more[:at]) == args["think_end"][0][0] for at in range(len(more) + 1))
        assert found[0] is None


def test_a_sentence_without_a_budget_is_refused() -> None:
    checks = RequestArgsValidator(load_processors(["ThinkingBudgetLogitsProcessor"]), 49152, encode)
    for args, path in (
        ({"think_stop_sentence": "Enough."}, "thinking_budget"),
        ({"thinking_budget": -1}, "thinking_budget"),
        ({"thinking_budget": "5"}, "thinking_budget"),
        ({"thinking_budget": 5, "think_end": ""}, "think_end"),
        ({"thinking_budget": 5, "think_stop_sentence": [49152]}, "think_stop_sentence"),
    ):
        with pytest.raises(RequestArgsError) as caught:
            checks.validate(SamplingParams(logits_processors_args=args))
        assert caught.value.path == f"logits_processors_args.{path}"
