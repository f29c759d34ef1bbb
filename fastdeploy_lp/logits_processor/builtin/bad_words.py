"""Rules out sequences of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.token_ban import TokenBanProcessor
from fastdeploy_lp.logits_processor.builtin.token_lists import MAX_SEQUENCES, TokenSequence
from fastdeploy_lp.logits_processor.sequence_state.bad_words import BadWords
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest


class BadWordsParams(BaseModel):
    """`bad_words_token_ids`: lists of token ids."""

    model_config = ConfigDict(extra="forbid")

    bad_words_token_ids: Annotated[list[TokenSequence], Field(max_length=MAX_SEQUENCES)] | None = None


@dataclass(frozen=True)
class _Watched:
    words: BadWords
    output: list[int]


class BadWordsLogitsProcessor(TokenBanProcessor[_Watched]):
    """`{"bad_words_token_ids": [[token_id, …], …]}` sets the last token of each list to -inf after the others.

    A list applies while the output ends with its other tokens; the prompt does not count. Same rule as the sampler's
    field of this name (as in vLLM, and as Hugging Face's `bad_words_ids`), applied at the processor's place in the
    chain.
    """

    Params = BadWordsParams

    def _build(self, request: SlotRequest) -> _Watched | None:
        words = request.args.get("bad_words_token_ids")
        return _Watched(BadWords(words), request.output) if words else None

    def _banned(self, state: _Watched) -> NDArray[np.int64]:
        return state.words.banned(state.output)
