"""Penalties on tokens that occurred before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.slot_processor import SlotProcessor
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest
from fastdeploy_lp.request.limits import MAX_REPETITION_PENALTY

if TYPE_CHECKING:
    from paddle import Tensor

Int64s = NDArray[np.int64]
RepetitionRate = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0, le=MAX_REPETITION_PENALTY)]
Rate = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-2, le=2)]

NO_PENALTIES = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


@dataclass(frozen=True)
class Penalized:
    """A request's repetition, presence and frequency penalty, and counts of the penalized tokens."""

    rates: tuple[float, float, float]
    counts: TokenCounts


class TokenPenaltyProcessor(SlotProcessor[Penalized]):
    """Applies the penalties whose names are in `arguments`, in one pass: their sum is rounded once."""

    keeps_rows_valid = True
    arguments: ClassVar[tuple[str, ...]] = tuple(NO_PENALTIES)

    def _build(self, request: SlotRequest) -> Penalized | None:
        given = {name: request.args.get(name) for name in self.arguments}
        rates = {**NO_PENALTIES, **{name: rate for name, rate in given.items() if rate is not None}}
        if rates == NO_PENALTIES:
            return None
        repetition = rates["repetition_penalty"]
        # Only the repetition penalty counts tokens of the prompt.
        counts = TokenCounts(request.prompt if repetition != 1.0 else (), request.output)
        return Penalized((repetition, rates["presence_penalty"], rates["frequency_penalty"]), counts)

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:  # noqa: ARG002 - every step differs
        # Imported here: the API process reads Params from these modules and does not need Paddle.
        from fastdeploy_lp.model_executor.ops.row_ops import Penalties

        states = self._slots.states
        if states:
            counted = [state.counts.catch_up() for state in states]
            self._penalties = Penalties.of(self._slots.rows.tolist(), counted, [state.rates for state in states])

    def _edit(self, logits: Tensor) -> None:
        self._edits.penalize(logits, self._penalties)


class TokenCounts:
    """The distinct tokens of a prompt and of the live list of output tokens; follows the list's growth."""

    def __init__(self, prompt_token_ids: Sequence[int], output_token_ids: Sequence[int]) -> None:
        self._output = output_token_ids
        self._seen = 0
        distinct = np.unique(np.asarray(prompt_token_ids, np.int64))
        self._places = {token: place for place, token in enumerate(distinct.tolist())}
        self._tokens = np.concatenate([distinct, np.empty(64, np.int64)])
        self._counts = np.zeros(len(self._tokens), np.int64)

    def catch_up(self) -> tuple[Int64s, Int64s]:
        """Returns the distinct tokens and how often each was generated so far (0: only the prompt holds it).

        Both are views [tokens] that the next call may change.
        """
        for token in self._output[self._seen :]:
            place = self._places.setdefault(token, len(self._places))
            if place == len(self._tokens):
                self._double()
            self._tokens[place] = token
            self._counts[place] += 1
        self._seen = len(self._output)
        count = len(self._places)
        return self._tokens[:count], self._counts[:count]

    def _double(self) -> None:
        self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
        self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])


class RepetitionPenaltyParams(BaseModel):
    """`repetition_penalty`: above 0; 1 changes nothing."""

    model_config = ConfigDict(extra="forbid")

    repetition_penalty: RepetitionRate | None = None


class RepetitionPenaltyLogitsProcessor(TokenPenaltyProcessor):
    """`{"repetition_penalty": rate}` divides positive logits of tokens in prompt or output by rate.

    Their negative logits are multiplied by it. As in vLLM and Hugging Face, from Keskar et al., 2019, "CTRL: A
    Conditional Transformer Language Model for Controllable Generation" (arXiv:1909.05858). The request field of this
    name does the same after the chain.
    """

    Params = RepetitionPenaltyParams
    arguments = ("repetition_penalty",)


class PresencePenaltyParams(BaseModel):
    """`presence_penalty`: -2 to 2; 0 changes nothing."""

    model_config = ConfigDict(extra="forbid")

    presence_penalty: Rate | None = None


class PresencePenaltyLogitsProcessor(TokenPenaltyProcessor):
    """`{"presence_penalty": rate}` subtracts rate from the logits of tokens that occur in the output.

    As OpenAI's field of this name, which does the same after the chain.
    """

    Params = PresencePenaltyParams
    arguments = ("presence_penalty",)


class FrequencyPenaltyParams(BaseModel):
    """`frequency_penalty`: -2 to 2; 0 changes nothing."""

    model_config = ConfigDict(extra="forbid")

    frequency_penalty: Rate | None = None


class FrequencyPenaltyLogitsProcessor(TokenPenaltyProcessor):
    """`{"frequency_penalty": rate}` subtracts rate from a token's logit for each occurrence in the output.

    As OpenAI's field of this name, which does the same after the chain.
    """

    Params = FrequencyPenaltyParams
    arguments = ("frequency_penalty",)
