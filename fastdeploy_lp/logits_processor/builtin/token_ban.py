"""Base of builtins that rule out single tokens, different ones in each step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.builtin.slot_processor import SlotProcessor
from fastdeploy_lp.logits_processor.sequence_state.slot_states import State

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig


class TokenBanProcessor(SlotProcessor[State]):
    """Sets the tokens that `_banned` returns for each request to -inf."""

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        self._rows = self._tokens = np.empty(0, np.int64)

    @abstractmethod
    def _banned(self, state: State) -> NDArray[np.int64]:
        """Returns the tokens to rule out in this step."""

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:  # noqa: ARG002 - every step differs
        banned = [self._banned(state) for state in self._slots.states]
        self._tokens = np.concatenate(banned) if banned else np.empty(0, np.int64)
        self._rows = np.repeat(self._slots.rows, np.array([len(tokens) for tokens in banned], np.int64))

    def _edit(self, logits: Tensor) -> None:
        if self._tokens.size:
            self._ops.ban(logits, self._rows, self._tokens)
