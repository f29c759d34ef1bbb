"""Removes tokens below a fixed probability."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.row_cut import RowCutProcessor

Probability = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, lt=1)]


class EpsilonCutoffParams(BaseModel):
    """`epsilon_cutoff`: minimum probability of a token, at least 0 and below 1; 0 keeps all."""

    model_config = ConfigDict(extra="forbid")

    epsilon_cutoff: Probability | None = None


class EpsilonCutoffLogitsProcessor(RowCutProcessor):
    """`{"epsilon_cutoff": p}` removes tokens less likely than p; the most likely tokens stay.

    Usual values are 3e-4 to 9e-4. From Hewitt et al., 2022, "Truncation Sampling as Language Model Desmoothing"
    (arXiv:2210.15191); probabilities are taken before the temperature.
    """

    Params = EpsilonCutoffParams
    argument, cut, off = "epsilon_cutoff", "EPSILON", 0.0

    def is_argmax_invariant(self) -> bool:
        """True: the most likely tokens always stay."""
        return True
