"""Filters against their definitions in plain numpy."""

from __future__ import annotations

import numpy as np
import paddle
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builtins import VOCAB_SIZE, Slots, check_builtin, probabilities, random_row, usable, weights, without
from support.sequences import sequence

from fastdeploy_lp.logits_processor import Selection
from fastdeploy_lp.logits_processor.builtin.filters import (
    SALT,
    EpsilonCutoffLogitsProcessor,
    EtaCutoffLogitsProcessor,
    MinPLogitsProcessor,
    TopNSigmaLogitsProcessor,
    TypicalPLogitsProcessor,
    XTCLogitsProcessor,
)
from fastdeploy_lp.logits_processor.sequence_state.uniform import seeded_uniform
from fastdeploy_lp.model_executor.ops.row_ops import Cut, Draws
from fastdeploy_lp.model_executor.ops.row_selection import row_ops
from fastdeploy_lp.worker.sequence import Sequence

min_shares = st.sampled_from([0.0, 1e-6, 0.1, 0.5, 1.0]) | st.floats(0, 1, width=32, allow_subnormal=False)


def after_min_p(row: np.ndarray, request: Sequence) -> np.ndarray:
    share = request.selection.flat["min_p"]
    return without(row, weights(row) < np.float32(share) * 2.0**32) if share and usable(row) else row


def test_min_p() -> None:
    # The reference's least weight of 1 for an own share above 0 is the rule of a draw.
    def with_least(row: np.ndarray, request: Sequence) -> np.ndarray:
        asked = bool(request.selection.flat["min_p"]) and usable(row)
        return without(after_min_p(row, request), weights(row) < 1) if asked else row

    check_builtin(MinPLogitsProcessor, with_least, st.fixed_dictionaries({"min_p": min_shares}))


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), min_shares.filter(lambda share: share > 0))
def test_the_processor_and_the_sampler_keep_the_same_tokens(seed: int, share: float) -> None:
    row = random_row(np.random.default_rng(seed))[None]
    if not usable(row[0]):
        return
    one = np.ones(1, np.float32)
    draws = Draws(one, np.array([share], np.float32), np.zeros(1, np.int64), one, one)
    sampled = row_ops().filtered(paddle.to_tensor(row), draws).numpy()
    cut = paddle.to_tensor(row)
    row_ops().cut(cut, Cut.MIN_P, np.zeros(1, np.int64), np.array([share], np.float32))
    np.testing.assert_array_equal(cut.numpy(), sampled)


def after_top_n_sigma(row: np.ndarray, request: Sequence) -> np.ndarray:
    if not usable(row):
        return row
    deviation = row[np.isfinite(row)].astype(np.float64).std()
    return without(row, row < row.max() - np.float32(request.selection.flat["top_n_sigma"]) * deviation)


def test_top_n_sigma() -> None:
    arguments = st.fixed_dictionaries({"top_n_sigma": st.floats(2**-7, 5, width=32)})
    check_builtin(TopNSigmaLogitsProcessor, after_top_n_sigma, arguments)


typical_shares = st.sampled_from([0.2, 0.5, 0.9, 1.0]) | st.floats(2**-7, 1, width=32)


def after_typical_p(row: np.ndarray, request: Sequence) -> np.ndarray:
    share = request.selection.flat["typical_p"]
    if share == 1 or not usable(row):
        return row
    below = row.astype(np.float64) - float(row.max())
    weight = weights(row)
    # The surprise less the entropy is the weighted mean of the logits less the logit.
    mean = (weight * np.maximum(below, -700.0)).sum() / weight.sum()
    distance = np.abs(below - mean).astype(np.float32)
    order = np.argsort(distance, kind="stable")
    enough = np.flatnonzero(np.cumsum(weight[order]) >= np.float64(np.float32(share)) * weight.sum())[0]
    return without(row, distance > distance[order[enough]])


def test_typical_p() -> None:
    check_builtin(TypicalPLogitsProcessor, after_typical_p, st.fixed_dictionaries({"typical_p": typical_shares}))


epsilons = st.sampled_from([0.0, 3e-4, 0.03, 0.9]) | st.floats(0, 0.984375, width=32, allow_subnormal=False)


def after_epsilon_cutoff(row: np.ndarray, request: Sequence) -> np.ndarray:
    epsilon = np.float32(request.selection.flat["epsilon_cutoff"])
    if not epsilon or not usable(row):
        return row
    return without(row, (probabilities(row) < np.float64(epsilon)) & (row < row.max()))


def test_epsilon_cutoff() -> None:
    arguments = st.fixed_dictionaries({"epsilon_cutoff": epsilons})
    check_builtin(EpsilonCutoffLogitsProcessor, after_epsilon_cutoff, arguments)


etas = st.sampled_from([0.0, 3e-4, 0.03, 0.9]) | st.floats(2**-20, 0.984375, width=32)


def after_eta_cutoff(row: np.ndarray, request: Sequence) -> np.ndarray:
    epsilon = np.float64(np.float32(request.selection.flat["eta_cutoff"]))
    if not epsilon or not usable(row):
        return row
    probability = probabilities(row)
    positive = probability[probability > 0]
    entropy = -(positive * np.log(positive)).sum()
    least = min(epsilon, np.sqrt(epsilon) * np.exp(-entropy))
    return without(row, (probability < least) & (row < row.max()))


def test_eta_cutoff() -> None:
    check_builtin(EtaCutoffLogitsProcessor, after_eta_cutoff, st.fixed_dictionaries({"eta_cutoff": etas}))


xtc_arguments = st.fixed_dictionaries(
    {"xtc_probability": st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1)},
    optional={"xtc_threshold": st.sampled_from([0.02, 0.1, 0.5, 0.9])},
)


def after_xtc(row: np.ndarray, request: Sequence) -> np.ndarray:
    args = request.selection.flat
    seed = np.array([request.params.seed], np.uint64) ^ SALT
    drawn = seeded_uniform(seed, np.array([request.num_tokens], np.uint64))[0]
    if not args["xtc_probability"] or drawn > np.float32(args["xtc_probability"]) or not usable(row):
        return row
    probability = probabilities(row)
    likely = np.flatnonzero(probability >= np.float64(np.float32(args.get("xtc_threshold", 0.1))))
    # By falling logit, equal ones by id; the last of them stays.
    ranked = likely[np.lexsort((likely, -row[likely]))]
    return without(row, ranked[:-1])


def test_xtc() -> None:
    check_builtin(XTCLogitsProcessor, after_xtc, xtc_arguments, examples=80)


def test_xtc_happens_as_often_as_asked_and_by_seed_and_position_alone() -> None:
    row = np.zeros((1, VOCAB_SIZE), np.float32)
    row[0, :2] = 9.0, 8.0

    def happens(slot: int, seed: int) -> list[bool]:
        slots = Slots(XTCLogitsProcessor)
        made = sequence([1], seed=seed)
        made.selection = Selection(flat={"xtc_probability": 0.25})
        slots.enter(slot, made)
        found = []
        for _ in range(60):
            found.append(bool(np.isneginf(slots.process([slot], row)[0, 0])))
            slots.append(slot, 1)
        return found

    histories = [happens(0, seed) for seed in range(40)]
    # 2,400 draws: five standard deviations are 0.044.
    assert abs(np.mean(histories) - 0.25) < 0.045
    assert happens(4, 7) == histories[7] != histories[8]
