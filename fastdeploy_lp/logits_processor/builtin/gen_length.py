"""Makes the end of the output more or less likely as the output grows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.base import LogitsProcessor
from fastdeploy_lp.logits_processor.builtin.logit_rows import LogitRows
from fastdeploy_lp.logits_processor.phrase import Phrase, SentenceEnds
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest, SlotStates

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig

MAX_BIAS = 1e9


class GenLengthParams(BaseModel):
    """`gen_length_boost`: above 0 for shorter outputs, below 0 for longer ones.

    gen_length_power: exponent of the growth with the length. gen_length_token: tokens to boost instead of the model's
    end-of-sequence tokens. gen_length_complete_sentences: boost only after the end of a sentence; true, or the texts
    that end one.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    gen_length_boost: Annotated[float, Field(ge=-1e4, le=1e4, allow_inf_nan=False)] | None
    gen_length_power: Annotated[int, Field(ge=0, le=8)] = 2
    gen_length_token: Phrase | None = None
    gen_length_complete_sentences: SentenceEnds = []


class GenLengthLogitsProcessor(LogitsProcessor):
    """`{"gen_length_boost": b, "gen_length_power": p}` adds b · n^p / 10^p to the end-of-sequence logits at n tokens.

    Adds nothing after such a token was generated. From logits-processor-zoo.
    """

    Params = GenLengthParams
    only_with_args = True
    keeps_rows_valid = True

    def __init__(self, fd_config: FDConfig) -> None:
        self._eos_token_ids = list(fd_config.model_config.eos_token_ids)
        self._states = SlotStates(self._state_of)
        # Row and token of each entry, and the number of entries of each request.
        self._rows = self._tokens = self._counts = np.empty(0, np.int64)
        self._biases = np.empty(0, np.float64)

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Computes the biases; finds their tokens only when the batch has changed."""
        changed, states = self._states.follow(share_inputs), self._states.states
        if changed:
            self._counts = np.array([len(state.tokens) for state in states], np.int64)
            self._rows = np.repeat(self._states.rows, self._counts)
            self._tokens = np.array([token for state in states for token in state.tokens], np.int64)
        self._biases = np.fromiter((state.bias() for state in states), np.float64, len(states))

    def apply(self, logits: Tensor) -> Tensor:
        """Adds the biases in place."""
        if self._biases.any():
            LogitRows(logits).add(self._rows, self._tokens, np.repeat(self._biases, self._counts))
        return logits

    def _state_of(self, request: SlotRequest) -> _Length | None:
        args = request.args
        boost, tokens = args.get("gen_length_boost"), args.get("gen_length_token") or self._eos_token_ids
        if boost is None or not tokens:
            return None
        ends = frozenset(args.get("gen_length_complete_sentences") or ())
        return _Length(request.output, boost, args.get("gen_length_power", 2), list(dict.fromkeys(tokens)), ends)


@dataclass
class _Length:
    output: list[int]
    boost: float
    power: int
    tokens: list[int]
    sentence_ends: frozenset[int]

    def __post_init__(self) -> None:
        self.ended = any(token in self.tokens for token in self.output)

    def bias(self) -> float:
        """Returns the bias for the output's length; called once a step, so that only one token is new."""
        length = len(self.output)
        if length and self.output[-1] in self.tokens:
            self.ended = True
        if self.ended or (self.sentence_ends and length and self.output[-1] not in self.sentence_ends):
            return 0.0
        return max(-MAX_BIAS, min(MAX_BIAS, self.boost * (length / 10) ** self.power))
