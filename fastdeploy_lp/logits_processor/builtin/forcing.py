"""Base of builtins that force a request's next token."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from fastdeploy_lp.logits_processor.base import LogitsProcessor
from fastdeploy_lp.logits_processor.builtin.logit_rows import LogitRows
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest, SlotStates

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig


class ForcingState(Protocol):
    """State of one request of a `ForcingProcessor`."""

    def forced(self) -> int | None:
        """Returns the token that must come next, None to leave the row unchanged; called once a step."""


class ForcingProcessor(LogitsProcessor):
    """Rules out all tokens but the one that a request's state returns; leaves other rows untouched."""

    only_with_args = True
    # A forced token gets a new logit, so one finite logit remains whatever was ruled out before.
    keeps_rows_valid = True
    remembered_per_slot = 0

    def __init__(self, fd_config: FDConfig) -> None:
        self.eos_token_ids = fd_config.model_config.eos_token_ids
        remember = self.remembered_per_slot * fd_config.scheduler_config.max_num_seqs
        self._states = SlotStates(self.state_of, remember=remember)
        self._rows: list[int] = []
        self._tokens: list[int] = []

    @abstractmethod
    def state_of(self, request: SlotRequest) -> ForcingState | None:
        """Returns the state of a request that enters a slot, with or without output; None if it needs none."""

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Reads the tokens of the last step."""
        self._rows, self._tokens = [], []
        self._states.follow(share_inputs)
        for row, state in self._states:
            token = state.forced()
            if token is not None:
                self._rows.append(row)
                self._tokens.append(token)

    def apply(self, logits: Tensor) -> Tensor:
        """Forces tokens in their rows, in place."""
        if self._rows:
            LogitRows(logits).force(self._rows, self._tokens)
        return logits
