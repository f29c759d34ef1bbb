"""Base of builtin penalties on tokens that occurred before."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fastdeploy_lp.logits_processor.builtin.slot_processor import SlotProcessor
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest
from fastdeploy_lp.logits_processor.sequence_state.token_counts import TokenCounts

if TYPE_CHECKING:
    from paddle import Tensor

Rates = tuple[float, float, float]
"""Repetition, presence and frequency penalty."""


@dataclass(frozen=True)
class Penalized:
    """Rates of a request, and counts of the penalized tokens."""

    rates: Rates
    counts: TokenCounts


class TokenPenaltyProcessor(SlotProcessor[Penalized]):
    """Applies the sampler's penalties with one of the three rates.

    argument: name of the rate. off: rate that changes nothing. counts_prompt: True if tokens of the prompt count.
    """

    keeps_rows_valid = True
    argument: ClassVar[str]
    off: ClassVar[float]
    counts_prompt: ClassVar[bool] = False

    @staticmethod
    @abstractmethod
    def rates(rate: float) -> Rates:
        """Returns all three rates; the other two change nothing."""

    def _build(self, request: SlotRequest) -> Penalized | None:
        rate = request.args.get(self.argument)
        if rate is None or rate == self.off:
            return None
        return Penalized(self.rates(rate), TokenCounts(request.prompt if self.counts_prompt else (), request.output))

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:  # noqa: ARG002 - every step differs
        # Imported here: the API process reads Params from these modules and does not need Paddle.
        from fastdeploy_lp.model_executor.ops.row_ops import Penalties

        states = self._slots.states
        if states:
            counted = [state.counts.catch_up() for state in states]
            self._penalties = Penalties.of(self._slots.rows.tolist(), counted, [state.rates for state in states])

    def _edit(self, logits: Tensor) -> None:
        self._ops.penalize(logits, self._penalties)
