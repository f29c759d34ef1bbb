from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from support.builtins import VOCAB_SIZE, Slots, check_builtin, probabilities, usable, without
from support.sequences import sequence

from fastdeploy_lp.logits_processor import Selection
from fastdeploy_lp.logits_processor.builtin.filters import SALT, XTCLogitsProcessor
from fastdeploy_lp.logits_processor.sequence_state.uniform import seeded_uniform
from fastdeploy_lp.worker.sequence import Sequence

arguments = st.fixed_dictionaries(
    {"xtc_probability": st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1)},
    optional={"xtc_threshold": st.sampled_from([0.02, 0.1, 0.5, 0.9])},
)


def reference(row: np.ndarray, request: Sequence) -> np.ndarray:
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


def test_every_row_keeps_what_its_request_asks_for() -> None:
    check_builtin(XTCLogitsProcessor, reference, arguments, examples=80)


def test_it_happens_as_often_as_asked_and_by_seed_and_position_alone() -> None:
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
