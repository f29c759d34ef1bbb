"""Leaves out tokens far less likely than the most likely one."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.row_cut import RowCutProcessor

Share = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=1)]


class MinPParams(BaseModel):
    """`min_p`: the share of the most likely token's probability that a token needs, 0 to 1; 0 leaves all."""

    model_config = ConfigDict(extra="forbid")

    min_p: Share | None = None


class MinPLogitsProcessor(RowCutProcessor):
    """`{"min_p": share}` leaves out tokens less likely than this share of the most likely one.

    The rule of the sampler's `min_p`, here at its place in the chain: of the probabilities before the temperature. From
    Nguyen et al., 2024, "Turning Up the Heat: Min-p Sampling" (arXiv:2407.01082).
    """

    Params = MinPParams
    argument, cut, off = "min_p", "MIN_P", 0.0

    def is_argmax_invariant(self) -> bool:
        """The most likely tokens always stay."""
        return True
