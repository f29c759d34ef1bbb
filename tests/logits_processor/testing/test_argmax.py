"""The checks that authors hold their processors against."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from paddle import Tensor
from support.tiny import tiny_fd_config

from fastdeploy_lp.logits_processor import LogitsProcessor
from fastdeploy_lp.logits_processor.testing import ConformanceError, check_argmax_invariance


class Scales(LogitsProcessor):
    """Multiplies active rows by `factor` and says that this never changes who is first."""

    def __init__(self, fd_config: Any) -> None:
        self.factors: list[float] = []

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, share_inputs: Any) -> None:
        active = np.flatnonzero(~share_inputs["stop_flags"][:, 0])
        self.factors = [share_inputs["logits_processors_args"][slot].get("factor", 1.0) for slot in active]

    def apply(self, logits: Tensor) -> Tensor:
        for row, factor in enumerate(self.factors):
            logits[row] *= factor
        return logits


class ScalesAndSaysSo(Scales):
    """The same, without the claim."""

    def is_argmax_invariant(self) -> bool:
        return False


def test_a_true_claim_passes() -> None:
    check_argmax_invariance(Scales, tiny_fd_config(), [{}, {"factor": 0.5}, {"factor": 30.0}])


def test_a_false_claim_is_found_with_its_row() -> None:
    with pytest.raises(ConformanceError, match="Scales says that it is argmax-invariant, but in row 1"):
        check_argmax_invariance(Scales, tiny_fd_config(), [{}, {"factor": -1.0}, {}])


def test_without_the_claim_anything_goes() -> None:
    check_argmax_invariance(ScalesAndSaysSo, tiny_fd_config(), [{"factor": -1.0}])


def test_a_builtin_is_checked_by_its_name() -> None:
    check_argmax_invariance("LogitBiasLogitsProcessor", tiny_fd_config(), [{"logit_bias": {3: 100.0}}])


def test_more_rows_than_slots_are_refused() -> None:
    with pytest.raises(ValueError, match="max_num_seqs is 2"):
        check_argmax_invariance(Scales, tiny_fd_config(max_num_seqs=2), [{}] * 3)
