"""Forced tokens: the base of builtins whose next token follows from their state alone, and prefix forcing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict

from fastdeploy_lp.logits_processor.builtin.slot_processor import SlotProcessor
from fastdeploy_lp.logits_processor.phrase import Phrase
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig


class ForcingState(Protocol):
    """State of one request of a `ForcingProcessor`."""

    def forced(self) -> int | None:
        """Returns the token that must come next, None to leave the row unchanged; called once a step."""


class ForcingProcessor(SlotProcessor[ForcingState]):
    """Rules out all tokens but the one that a request's state returns; leaves other rows untouched."""

    # A forced token gets a new logit, so one finite logit remains whatever was ruled out before.
    keeps_rows_valid = True

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        self._rows = self._tokens = np.empty(0, np.int64)

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:  # noqa: ARG002 - every step differs
        forced = [(row, token) for row, state in self._slots if (token := state.forced()) is not None]
        self._rows = np.array([row for row, _ in forced], np.int64)
        self._tokens = np.array([token for _, token in forced], np.int64)

    def _edit(self, logits: Tensor) -> None:
        if self._rows.size:
            self._edits.force(logits, self._rows, self._tokens)


class ForcedSequenceParams(BaseModel):
    """`forced_sequence`: the first words of the output, a text or token ids."""

    model_config = ConfigDict(extra="forbid", strict=True)

    forced_sequence: Phrase | None


class ForcedSequenceLogitsProcessor(ForcingProcessor):
    """`{"forced_sequence": "Sure, here is"}` makes the output begin with these words; then the model continues freely.

    Known as prefix forcing; Hugging Face's `forced_bos_token_id` is the case of one token.
    """

    Params = ForcedSequenceParams

    def _build(self, request: SlotRequest) -> ForcingState | None:
        sequence = request.args.get("forced_sequence")
        return _Beginning(sequence, request.output) if sequence else None


@dataclass(frozen=True)
class _Beginning:
    sequence: Any
    output: list[int]

    def forced(self) -> int | None:
        """Returns the token of the sequence at the output's length, None after the last one."""
        length = len(self.output)
        return self.sequence[length] if length < len(self.sequence) else None
