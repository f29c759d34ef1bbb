"""Makes tokens of prompt and output less likely."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.token_penalty import Rates, TokenPenaltyProcessor
from fastdeploy_lp.request_limits import MAX_REPETITION_PENALTY

Rate = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0, le=MAX_REPETITION_PENALTY)]


class RepetitionPenaltyParams(BaseModel):
    """`repetition_penalty`: above 0; 1 changes nothing."""

    model_config = ConfigDict(extra="forbid")

    repetition_penalty: Rate | None = None


class RepetitionPenaltyLogitsProcessor(TokenPenaltyProcessor):
    """`{"repetition_penalty": rate}` divides positive logits of tokens in prompt or output by rate.

    Their negative logits are multiplied by it. Same rule as the sampler's field of this name, applied at the
    processor's place in the chain. As in vLLM and Hugging Face, from Keskar et al., 2019, "CTRL: A Conditional
    Transformer Language Model for Controllable Generation" (arXiv:1909.05858).
    """

    Params = RepetitionPenaltyParams
    argument, off = "repetition_penalty", 1.0
    counts_prompt = True

    @staticmethod
    def rates(rate: float) -> Rates:
        """See the base class."""
        return rate, 0.0, 0.0
