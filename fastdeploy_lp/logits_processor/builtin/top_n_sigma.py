"""Removes tokens whose logit is too many standard deviations below the greatest."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.row_cut import RowCutProcessor

Deviations = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0, le=1000)]


class TopNSigmaParams(BaseModel):
    """`top_n_sigma`: number of standard deviations, above 0 and at most 1000."""

    model_config = ConfigDict(extra="forbid")

    top_n_sigma: Deviations | None = None


class TopNSigmaLogitsProcessor(RowCutProcessor):
    """`{"top_n_sigma": n}` removes tokens with logits more than n standard deviations below the greatest one.

    The standard deviation is that of the row's finite logits; the kept tokens do not depend on the temperature. The
    usual value is 1. From Tang et al., 2024, "Top-nσ: Not All Logits Are You Need" (arXiv:2411.07641).
    """

    Params = TopNSigmaParams
    argument, cut, off = "top_n_sigma", "TOP_N_SIGMA", None

    def is_argmax_invariant(self) -> bool:
        """True: the most likely tokens always stay."""
        return True
