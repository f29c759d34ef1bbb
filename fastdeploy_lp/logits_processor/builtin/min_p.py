"""Removes tokens far less likely than the most likely one."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.row_cut import RowCutProcessor

Share = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=1)]


class MinPParams(BaseModel):
    """`min_p`: minimum probability of a token relative to the most likely one, 0 to 1; 0 keeps all."""

    model_config = ConfigDict(extra="forbid")

    min_p: Share | None = None


class MinPLogitsProcessor(RowCutProcessor):
    """`{"min_p": share}` removes tokens less likely than this share of the most likely one.

    Same rule as the sampler's `min_p`, applied at the processor's place in the chain, to the probabilities before the
    temperature. From Nguyen et al., 2024, "Turning Up the Heat: Min-p Sampling" (arXiv:2407.01082).
    """

    Params = MinPParams
    argument, cut, off = "min_p", "MIN_P", 0.0

    def is_argmax_invariant(self) -> bool:
        """True: the most likely tokens always stay."""
        return True
