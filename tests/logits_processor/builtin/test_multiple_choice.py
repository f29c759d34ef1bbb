from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chat import encode
from support.churned import DTYPES, EOS, VOCAB_SIZE, Churn, Row, Slots, crowds

from fastdeploy_lp.logits_processor import RequestArgsError, RequestArgsValidator, load_processors
from fastdeploy_lp.logits_processor.builtin.multiple_choice import MultipleChoiceLogitsProcessor
from fastdeploy_lp.request.sampling_params import SamplingParams

few = st.integers(2, 6)
answers = st.lists(st.lists(few, min_size=1, max_size=3), min_size=1, max_size=2)
arguments = st.fixed_dictionaries(
    {"choices": st.none() | st.lists(answers, min_size=1, max_size=3)},
    optional={"choice_first_word_boost": st.just(0.5)},
).map(lambda args: {**args, "choice_delimiter": [7]})


def first_words(args: dict[str, Any], prompt: list[int]) -> list[tuple[int, int]]:
    found = []
    for forms in args["choices"]:
        ends = [
            at + len(form) + 1
            for form in forms
            for at in range(len(prompt) - len(form) - 1)
            if prompt[at : at + len(form) + 1] == [*form, 7]
        ]
        if ends:
            found += [(first, prompt[max(ends)]) for first in dict.fromkeys(form[0] for form in forms)]
    return found


def reference(args: dict[str, Any], prompt: list[int]) -> Any:
    def row(logits: Row, output: list[int]) -> Row:
        if args["choices"] is None:
            return logits
        sequences = [form for forms in args["choices"] for form in forms]
        if not output and args.get("choice_first_word_boost"):
            for choice, added in [(choice, logits[word] / 2) for choice, word in first_words(args, prompt)]:
                logits[choice] += added
        length = len(output)
        allowed = {each[length] for each in sequences if each[:length] == output and len(each) > length}
        allowed |= {EOS} if output in sequences else set()
        logits[[token for token in range(VOCAB_SIZE) if token not in allowed]] = -np.inf
        return logits

    return row


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25)
@given(crowds(arguments), st.integers(0, 2**20))
def test_rows_are_as_the_reference_makes_them(dtype: str, crowd: Any, seed: int) -> None:
    Churn(MultipleChoiceLogitsProcessor, crowd, reference, seed=seed, dtype=dtype).run()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_first_word_behind_a_listed_choice_counts(dtype: str) -> None:
    slots = Slots(MultipleChoiceLogitsProcessor)
    args = {"choices": [[[2]], [[3]]], "choice_first_word_boost": 0.5, "choice_delimiter": [7]}
    slots.enter(0, [2, 7, 10, 3, 7, 11, 9], args)
    logits = np.zeros((1, VOCAB_SIZE), np.float32)
    logits[0, [2, 3, 10, 11]] = [3.0, 1.0, 0.5, 8.0]
    slots.update()
    (row,) = slots.apply(logits, dtype)
    assert (row[2], row[3]) == (3.25, 5.0)
    assert np.flatnonzero(row > -np.inf).tolist() == [2, 3]


def test_what_another_processor_forced_in_between_leaves_the_end() -> None:
    slots = Slots(MultipleChoiceLogitsProcessor)
    slots.enter(0, [5], {"choices": [[[2, 3]]]}, [9])
    assert slots.forces() == [EOS]


@pytest.mark.parametrize(
    ("args", "path"),
    [
        ({"choices": []}, "choices"),
        ({"choices": "A"}, "choices"),
        ({"choices": ["A", ""]}, "choices.1"),
        ({"choices": ["A", 5]}, "choices.1"),
        ({"choice_delimiter": ")"}, "choices"),
        ({"choices": ["A"], "choice_first_word_boost": -1}, "choice_first_word_boost"),
    ],
    ids=str,
)
def test_mistakes_are_named_by_their_path(args: dict[str, Any], path: str) -> None:
    checks = RequestArgsValidator(load_processors(["MultipleChoiceLogitsProcessor"]), 49152, encode)
    with pytest.raises(RequestArgsError) as caught:
        checks.validate(SamplingParams(logits_processors_args=args))
    assert caught.value.path == f"logits_processors_args.{path}"
