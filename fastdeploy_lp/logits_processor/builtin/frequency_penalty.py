"""Makes tokens less likely for each occurrence in the output."""

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
    """`{"frequency_penalty": rate}` subtracts rate from a token's logit for each occurrence in the output.

    Same rule as the sampler's and OpenAI's field of this name, applied at the processor's place in the chain.
    """

    Params = FrequencyPenaltyParams
    argument, off = "frequency_penalty", 0.0

    @staticmethod
    def rates(rate: float) -> Rates:
        """See the base class."""
        return 1.0, 0.0, rate
