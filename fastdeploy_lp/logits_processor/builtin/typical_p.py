"""Keeps the tokens that are as surprising as the row makes one expect."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.row_cut import RowCutProcessor

# A smaller one would be 0 in float32, and of 0 nothing would be kept.
SMALLEST_SHARE = 1e-30
Share = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=SMALLEST_SHARE, le=1)]


class TypicalPParams(BaseModel):
    """`typical_p`: how much probability the kept tokens reach together, 1e-30 to 1; 1 leaves all."""

    model_config = ConfigDict(extra="forbid")

    typical_p: Share | None = None


class TypicalPLogitsProcessor(RowCutProcessor):
    """`{"typical_p": p}` keeps the tokens whose surprise is nearest to the entropy, until they reach p.

    The surprise is -log(probability). Of equally near ones all stay. The most likely token can be left out.
    From Meister et al., 2022, "Locally Typical Sampling" (arXiv:2202.00666); the probabilities are those before
    the temperature.
    """

    Params = TypicalPParams
    argument, cut, off = "typical_p", "TYPICAL", 1.0
