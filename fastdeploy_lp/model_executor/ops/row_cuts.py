"""Interface of the builtin processors' operations on rows of logits, beyond the sampler's."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod

from paddle import Tensor

from fastdeploy_lp.model_executor.ops.row_ops import Floats, Int64s


class Cut(enum.IntEnum):
    """Which tokens of a row get -inf, by the row's own distribution at temperature 1 and one value.

    MIN_P: those less likely than this share of the most likely one, by the rule of a draw.
    EPSILON: those less likely than the value; the most likely ones stay.
    ETA: those less likely than min(value, sqrt(value) * exp(-entropy)); the most likely ones stay.
    TOP_N_SIGMA: those whose logit is more than the value times the standard deviation of the row's finite logits below
        the greatest.
    TYPICAL: those whose surprise is furthest from the entropy, when the others' probabilities reach the value.
    EXCLUDE_TOP: of those at least as likely as the value all but the last one of the ranking.
    """

    # Their order is that of csrc/row_cuts.cpp.
    MIN_P = 0
    EPSILON = 1
    ETA = 2
    TOP_N_SIGMA = 3
    TYPICAL = 4
    EXCLUDE_TOP = 5


class RowCuts(ABC):
    """Operations in place on logits, a tensor [rows, vocab_size]; each row's result depends on this row alone.

    None of them reads device data. Implementations agree but for logits within rounding (1e-13) of a bound.
    """

    @abstractmethod
    def cut(self, logits: Tensor, cut: Cut, rows: Int64s, values: Floats) -> None:
        """Cut row `rows[i]` by `values[i]`, both [n], the rows distinct; a row with a NaN or without a finite logit
        stays as it is."""

    @abstractmethod
    def add(self, logits: Tensor, rows: Int64s, tokens: Int64s, values: Floats) -> None:
        """Add `values[i]` to the logit of token `tokens[i]` in row `rows[i]`, all [n]; repeated places add up."""

    @abstractmethod
    def add_scaled(self, logits: Tensor, rows: Int64s, tokens: Int64s, values: Floats) -> None:
        """Add `values[i]` times its own magnitude to each logit that is not -inf, all [n], the places distinct."""
