from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from support.builtins import EOS, VOCAB_SIZE, Slots, check_builtin
from support.sequences import sequence

from fastdeploy_lp.logits_processor import Selection
from fastdeploy_lp.logits_processor.builtin.lengths import ExponentialLengthDecayLogitsProcessor
from fastdeploy_lp.worker.sequence import Sequence


def reference(row: np.ndarray, request: Sequence) -> np.ndarray:
    start, factor = request.selection.flat["exponential_decay_length_penalty"]
    beyond = len(request.output_token_ids) - start
    for token in EOS:
        if beyond > 0 and row[token] != -np.inf:
            row[token] += np.abs(np.float64(row[token])) * (min(factor**beyond, 1e9) - 1)
    return row


def test_every_row_is_drawn_to_its_end_behind_its_own_start() -> None:
    decays = st.tuples(st.integers(0, 8), st.sampled_from([0.5, 1.0, 1.01, 1.5, 1000.0]))
    arguments = st.fixed_dictionaries({"exponential_decay_length_penalty": decays})
    check_builtin(ExponentialLengthDecayLogitsProcessor, reference, arguments)


def test_an_endless_output_keeps_finite_logits() -> None:
    # What 1000 ** 60 would be has no float32.
    made = sequence([1], output=[7] * 60)
    made.selection = Selection(flat={"exponential_decay_length_penalty": [0, 1000.0]})
    row = np.full(VOCAB_SIZE, 20.0, np.float32)
    slots = Slots(ExponentialLengthDecayLogitsProcessor)
    slots.enter(0, made)
    assert np.isfinite(slots.process([0], row[None])).all()
