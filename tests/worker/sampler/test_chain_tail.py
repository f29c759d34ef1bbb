"""What requests change about single logits, against plain numpy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.row_ops import ROW_OPS, make_row_ops
from support.sequences import sequence
from support.tiny import tiny_fd_config

from fastdeploy_lp.model_executor.ops.row_ops import RowOps
from fastdeploy_lp.worker.sampler.sampler import ChainTail
from fastdeploy_lp.worker.sequence import Sequence as WorkerSequence

VOCAB_SIZE = 30
SLOTS = 8
CONFIG = tiny_fd_config(max_num_seqs=SLOTS)


@pytest.fixture(scope="module", params=ROW_OPS)
def ops(request: pytest.FixtureRequest) -> RowOps:
    return make_row_ops(request.param)


tokens = st.integers(0, VOCAB_SIZE - 1)
short = st.lists(tokens, max_size=12)


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """Parameters that change logits, or none."""
    some: dict[str, st.SearchStrategy[Any]] = {
        "repetition_penalty": st.sampled_from([0.5, 1.0, 1.3]),
        "presence_penalty": st.sampled_from([-1.0, 0.0, 0.7]),
        "frequency_penalty": st.sampled_from([-0.3, 0.0, 2.0]),
        "bad_words_token_ids": st.lists(st.lists(tokens, min_size=1, max_size=3), max_size=5),
        "allowed_token_ids": st.lists(tokens, min_size=1, max_size=12),
        "min_tokens": st.integers(0, 6),
        "stop_token_ids": st.lists(tokens, max_size=3),
    }
    return {name: draw(some[name]) for name in sorted(draw(st.sets(st.sampled_from(sorted(some)))))}


def edited(logits: np.ndarray, prompt: Sequence[int], output: Sequence[int], params: dict[str, Any]) -> np.ndarray:
    """One row after everything, entry by entry."""
    row = logits.astype(np.float64)
    if "allowed_token_ids" in params:
        row[[token for token in range(VOCAB_SIZE) if token not in params["allowed_token_ids"]]] = -np.inf
    counts = Counter(output)
    for token in {*prompt, *output}:
        rate = params.get("repetition_penalty", 1.0)
        row[token] = row[token] / np.float32(rate) if row[token] > 0 else row[token] * np.float64(np.float32(rate))
        row[token] -= np.float64(np.float32(params.get("frequency_penalty", 0.0))) * counts[token]
        row[token] -= np.float64(np.float32(params.get("presence_penalty", 0.0))) * (counts[token] > 0)
    for *beginning, last in params.get("bad_words_token_ids", []):
        if list(output)[len(output) - len(beginning) :] == beginning and len(beginning) <= len(output):
            row[last] = -np.inf
    if len(output) < params.get("min_tokens", 0):
        row[params.get("stop_token_ids", [])] = -np.inf
    return row.astype(np.float32)


def random_logits(seed: int, rows: int) -> np.ndarray:
    return 3 * np.random.default_rng(seed).standard_normal((rows, VOCAB_SIZE), dtype=np.float32)


def run(tail: ChainTail, sequences: Sequence[WorkerSequence], logits: np.ndarray) -> np.ndarray:
    tensor = paddle.to_tensor(logits)
    tail.apply(tensor, np.array([each.slot for each in sequences]))
    return tensor.numpy()


@settings(max_examples=40)
@given(st.lists(st.tuples(requests(), short.filter(bool), short), min_size=1, max_size=5), st.integers(0, 10**6))
def test_every_row_is_changed_as_its_own_request_asks(
    ops: RowOps, asked: list[tuple[dict[str, Any], list[int], list[int]]], seed: int
) -> None:
    tail = ChainTail(CONFIG, ops)
    slots = np.sort(np.random.default_rng(seed).permutation(SLOTS)[: len(asked)]).tolist()
    sequences = [
        sequence(prompt, output=output, slot=slot, **params)
        for slot, (params, prompt, output) in zip(slots, asked, strict=True)
    ]
    for each in sequences:
        tail.enter(each)
    # A few steps on, each with a token more.
    for step in range(3):
        logits = random_logits(seed + step, len(asked))
        changed = run(tail, sequences, logits)
        for row, (params, prompt, _) in enumerate(asked):
            expected = edited(logits[row], prompt, sequences[row].output_token_ids, params)
            np.testing.assert_array_equal(changed[row], expected)
            sequences[row].output_token_ids.append((7 * step + row) % VOCAB_SIZE)


def test_a_slot_that_was_left_changes_nothing(ops: RowOps) -> None:
    tail = ChainTail(CONFIG, ops)
    left = sequence([1, 2], slot=3, output=[1], repetition_penalty=2.0, allowed_token_ids=[4], min_tokens=5)
    tail.enter(left)
    logits = random_logits(0, 1)
    assert (run(tail, [left], logits) != logits).any()
    tail.leave(3)
    tail.leave(3)
    np.testing.assert_array_equal(run(tail, [left], logits), logits)
    assert not tail.any_bans


def test_a_request_without_such_parameters_costs_nothing(ops: RowOps) -> None:
    tail = ChainTail(CONFIG, ops)
    plain = sequence([1, 2], slot=0, output=[1], temperature=0.7, top_k=3, stop_token_ids=[1])
    tail.enter(plain)
    tail.apply(None, np.array([0]))  # the logits are not even looked at


def test_a_preempted_sequence_is_penalized_as_if_it_had_stayed(ops: RowOps) -> None:
    stays = sequence([1, 2, 2], slot=0, output=[5], frequency_penalty=0.5, repetition_penalty=1.2)
    comes_back = sequence([1, 2, 2], slot=1, output=[5], frequency_penalty=0.5, repetition_penalty=1.2)
    tail = ChainTail(CONFIG, ops)
    for each in (stays, comes_back):
        tail.enter(each)
    logits = np.tile(random_logits(0, 1), (2, 1))
    for token in (5, 9, 2, 5):
        for each in (stays, comes_back):
            each.output_token_ids.append(token)
        run(tail, [stays, comes_back], logits)
        tail.leave(1)
        tail.enter(comes_back)
        first, second = run(tail, [stays, comes_back], logits)
        np.testing.assert_array_equal(first, second)


def test_the_fields_that_rule_tokens_out_are_named(ops: RowOps) -> None:
    tail = ChainTail(CONFIG, ops)
    tail.enter(sequence([1], slot=0, repetition_penalty=1.5))
    assert (tail.bans_in(0), tail.bans_in(1), tail.any_bans) == ([], [], False)
    tail.enter(sequence([1], slot=1, allowed_token_ids=[3], stop_token_ids=[3], min_tokens=2))
    assert (tail.bans_in(1), tail.any_bans) == (["allowed_token_ids", "min_tokens"], True)
