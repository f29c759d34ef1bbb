"""Builtins that make the end of the output more or less likely as the output grows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.slot_processor import SlotProcessor
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest
from fastdeploy_lp.logits_processor.token_arguments import Phrase, SentenceEnds

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


class GenLengthLogitsProcessor(SlotProcessor["_Length"]):
    """`{"gen_length_boost": b, "gen_length_power": p}` adds b · n^p / 10^p to the end-of-sequence logits at n tokens.

    Adds nothing after such a token was generated. From logits-processor-zoo.
    """

    Params = GenLengthParams
    keeps_rows_valid = True

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        # Row and token of each entry, and the number of entries of each request.
        self._rows = self._tokens = self._counts = np.empty(0, np.int64)
        self._biases = np.empty(0, np.float32)

    def _build(self, request: SlotRequest) -> _Length | None:
        args = request.args
        boost, tokens = args.get("gen_length_boost"), args.get("gen_length_token") or self._eos_token_ids
        if boost is None or not tokens:
            return None
        ends = frozenset(args.get("gen_length_complete_sentences") or ())
        return _Length(request.output, boost, args.get("gen_length_power", 2), list(dict.fromkeys(tokens)), ends)

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:  # noqa: ARG002 - in the states
        states = self._slots.states
        if changed:
            self._counts = np.array([len(state.tokens) for state in states], np.int64)
            self._rows = np.repeat(self._slots.rows, self._counts)
            self._tokens = np.array([token for state in states for token in state.tokens], np.int64)
        self._biases = np.fromiter((state.bias() for state in states), np.float32, len(states))

    def _edit(self, logits: Tensor) -> None:
        if self._biases.any():
            self._edits.add(logits, self._rows, self._tokens, np.repeat(self._biases, self._counts))


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


Start = Annotated[int, Field(strict=True, ge=0, le=2**31)]
Factor = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0, le=1000)]
# A greater logit makes no difference, and a far greater one would not be finite.
MAX_LOG = math.log(1e9)


class ExponentialLengthDecayParams(BaseModel):
    """`exponential_decay_length_penalty`: number of tokens before it starts, and the factor, above 0, up to 1000."""

    model_config = ConfigDict(extra="forbid")

    exponential_decay_length_penalty: tuple[Start, Factor] | None = None


@dataclass(frozen=True)
class _Decay:
    start: int
    log_factor: float


class ExponentialLengthDecayLogitsProcessor(SlotProcessor[_Decay]):
    """`{"exponential_decay_length_penalty": [start, factor]}` raises end-of-sequence logits after `start` tokens.

    Adds (factor ** (output tokens beyond start) - 1) times its magnitude to the logit of each end-of-sequence token; a
    factor below 1 lowers it. As in Hugging Face.
    """

    Params = ExponentialLengthDecayParams
    keeps_rows_valid = True

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        self._ends = np.array(sorted(self._eos_token_ids), np.int64)
        self._starts = self._rows = self._tokens = np.empty(0, np.int64)
        self._log_factors = np.empty(0, np.float64)
        self._values = np.empty(0, np.float32)

    def _build(self, request: SlotRequest) -> _Decay | None:
        given = request.args.get("exponential_decay_length_penalty")
        return _Decay(given[0], math.log(given[1])) if given else None

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:
        if changed:
            self._starts = np.array([state.start for state in self._slots.states], np.int64)
            self._log_factors = np.array([state.log_factor for state in self._slots.states])
        beyond = share_inputs["step_idx"][self._slots.slots, 0] - self._starts
        late = beyond > 0
        added = np.expm1(np.minimum(beyond[late] * self._log_factors[late], MAX_LOG)).astype(np.float32)
        self._rows = np.repeat(self._slots.rows[late], len(self._ends))
        self._tokens = np.tile(self._ends, len(added))
        self._values = np.repeat(added, len(self._ends))

    def _edit(self, logits: Tensor) -> None:
        if self._tokens.size:
            self._edits.add_scaled(logits, self._rows, self._tokens, self._values)
