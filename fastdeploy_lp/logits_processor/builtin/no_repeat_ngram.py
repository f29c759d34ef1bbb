"""Rules out repeated runs of tokens."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.token_ban import TokenBanProcessor
from fastdeploy_lp.logits_processor.sequence_state.repeated_ngrams import RepeatedNGrams
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest

Size = Annotated[int, Field(strict=True, ge=0, le=1024)]


class NoRepeatNGramParams(BaseModel):
    """`no_repeat_ngram_size`: number of tokens in a run, 1 to 1024; 0 rules out nothing."""

    model_config = ConfigDict(extra="forbid")

    no_repeat_ngram_size: Size | None = None


class NoRepeatNGramLogitsProcessor(TokenBanProcessor[RepeatedNGrams]):
    """`{"no_repeat_ngram_size": n}` sets tokens to -inf that would repeat a run of n tokens.

    Runs in prompt and output count. From Paulus et al., 2017, "A Deep Reinforced Model for Abstractive Summarization"
    (arXiv:1705.04304), as in Hugging Face.
    """

    Params = NoRepeatNGramParams

    def _build(self, request: SlotRequest) -> RepeatedNGrams | None:
        size = request.args.get("no_repeat_ngram_size")
        return RepeatedNGrams(size, request.prompt, request.output) if size else None

    def _banned(self, state: RepeatedNGrams) -> NDArray[np.int64]:
        return state.completing()
