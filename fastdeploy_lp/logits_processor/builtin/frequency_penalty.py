"""Makes tokens less likely for each time that the output holds them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.token_penalty import Rates, TokenPenaltyProcessor

Rate = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-2, le=2)]


class FrequencyPenaltyParams(BaseModel):
    """`frequency_penalty`: -2 to 2; 0 changes nothing."""

    model_config = ConfigDict(extra="forbid")

    frequency_penalty: Rate | None = None


class FrequencyPenaltyLogitsProcessor(TokenPenaltyProcessor):
    """`{"frequency_penalty": rate}` takes rate off the logit of a token for each time that the output holds it.

    The sampler's and OpenAI's field of this name, at its place in the chain.
    """

    Params = FrequencyPenaltyParams
    argument, off = "frequency_penalty", 0.0

    @staticmethod
    def rates(rate: float) -> Rates:
        """As the base class says."""
        return 1.0, 0.0, rate
