"""Removes tokens below a probability that falls with the row's entropy."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.row_cut import RowCutProcessor

Probability = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, lt=1)]


class EtaCutoffParams(BaseModel):
    """`eta_cutoff`: epsilon, at least 0 and below 1; 0 keeps all tokens."""

    model_config = ConfigDict(extra="forbid")

    eta_cutoff: Probability | None = None


class EtaCutoffLogitsProcessor(RowCutProcessor):
    """`{"eta_cutoff": epsilon}` removes tokens less likely than min(epsilon, sqrt(epsilon) * exp(-entropy)).

    The most likely tokens stay. Usual values are 3e-4 to 4e-3. From Hewitt et al., 2022, "Truncation Sampling as
    Language Model Desmoothing" (arXiv:2210.15191); probabilities are taken before the temperature.
    """

    Params = EtaCutoffParams
    argument, cut, off = "eta_cutoff", "ETA", 0.0

    def is_argmax_invariant(self) -> bool:
        """True: the most likely tokens always stay."""
        return True
