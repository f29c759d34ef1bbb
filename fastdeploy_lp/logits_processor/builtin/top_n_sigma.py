"""Leaves out tokens by how many standard deviations their logit is below the greatest."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.row_cut import RowCutProcessor

Deviations = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0, le=1000)]


class TopNSigmaParams(BaseModel):
    """`top_n_sigma`: how many standard deviations, above 0, to 1000."""

    model_config = ConfigDict(extra="forbid")

    top_n_sigma: Deviations | None = None


class TopNSigmaLogitsProcessor(RowCutProcessor):
    """`{"top_n_sigma": n}` leaves out logits more than n standard deviations below the greatest one.

    The standard deviation is that of the row's finite logits; what is kept does not depend on the temperature. 1 is
    usual. From Tang et al., 2024, "Top-nσ: Not All Logits Are You Need" (arXiv:2411.07641).
    """

    Params = TopNSigmaParams
    argument, cut, off = "top_n_sigma", "TOP_N_SIGMA", None

    def is_argmax_invariant(self) -> bool:
        """The most likely tokens always stay."""
        return True
