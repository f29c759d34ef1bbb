"""Builtins against repeated runs of tokens."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from support.builtins import check_builtin, without

from fastdeploy_lp.logits_processor.builtin.repetitions import DRYLogitsProcessor, NoRepeatNGramLogitsProcessor
from fastdeploy_lp.worker.sequence import Sequence


def without_repeated_runs(row: np.ndarray, request: Sequence) -> np.ndarray:
    size, text = request.selection.flat["no_repeat_ngram_size"], request.prompt_token_ids + request.output_token_ids
    if not size or len(text) < size - 1:
        return row
    end = text[len(text) - size + 1 :]
    runs = [text[at : at + size] for at in range(len(text) - size + 1)]
    return without(row, [last for *beginning, last in runs if beginning == end])


def test_no_row_repeats_a_run_of_its_own_text() -> None:
    arguments = st.fixed_dictionaries({"no_repeat_ngram_size": st.integers(0, 4)})
    check_builtin(NoRepeatNGramLogitsProcessor, without_repeated_runs, arguments)


dry_arguments = st.fixed_dictionaries(
    {"dry_multiplier": st.sampled_from([0.0, 0.8, 3.0])},
    optional={
        "dry_base": st.sampled_from([1.0, 1.75, 1000.0]),
        "dry_allowed_length": st.integers(1, 3),
        "dry_sequence_breakers": st.lists(st.integers(0, 4), max_size=2),
        "dry_penalty_last_n": st.sampled_from([-1, 0, 1, 5, 9]),
    },
)


def after_dry(row: np.ndarray, request: Sequence) -> np.ndarray:
    args, text = request.selection.flat, request.prompt_token_ids + request.output_token_ids
    last = args.get("dry_penalty_last_n", -1)
    text = text if last < 0 else text[max(0, len(text) - last) :]
    allowed, breakers = args.get("dry_allowed_length", 2), args.get("dry_sequence_breakers", [])
    longest: dict[int, int] = {}
    for place in range(len(text) - 1):
        length = 0
        while length <= place and text[place - length] == text[-1 - length] and text[-1 - length] not in breakers:
            length += 1
        longest[text[place + 1]] = max(longest.get(text[place + 1], 0), length)
    for token, length in longest.items():
        if length >= allowed and args["dry_multiplier"]:
            penalty = args["dry_multiplier"] * args.get("dry_base", 1.75) ** (length - allowed)
            row[token] -= np.float32(min(penalty, 1e9))
    return row


def test_every_row_is_penalized_for_going_on_with_its_own_repetitions() -> None:
    check_builtin(DRYLogitsProcessor, after_dry, dry_arguments, examples=100)
