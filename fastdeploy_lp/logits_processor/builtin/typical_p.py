"""Keeps the tokens whose surprise is nearest to the row's entropy."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.row_cut import RowCutProcessor

# Much smaller values round to 0 in float32, which would keep nothing.
SMALLEST_SHARE = 1e-30
Share = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=SMALLEST_SHARE, le=1)]


class TypicalPParams(BaseModel):
    """`typical_p`: total probability that the kept tokens reach, 1e-30 to 1; 1 keeps all."""

    model_config = ConfigDict(extra="forbid")

    typical_p: Share | None = None


class TypicalPLogitsProcessor(RowCutProcessor):
    """`{"typical_p": p}` keeps the tokens whose surprise is nearest to the entropy, until their total reaches p.

    The surprise is -log(probability). Equally near tokens all stay. The most likely token can be removed. From Meister
    et al., 2022, "Locally Typical Sampling" (arXiv:2202.00666); probabilities are taken before the temperature.
    """

    Params = TypicalPParams
    argument, cut, off = "typical_p", "TYPICAL", 1.0
