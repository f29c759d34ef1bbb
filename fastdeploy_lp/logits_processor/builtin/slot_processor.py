"""Base of builtins with a state for each request."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from fastdeploy_lp.logits_processor.base import LogitsProcessor
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest, SlotStates, State

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.model_executor.ops.row_ops import RowEdits


class SlotProcessor(LogitsProcessor, Generic[State]):
    """Keeps a state for each request that uses it, and edits rows with the platform's operators.

    Each step it prepares its edits on the host, then makes them in place. A step without a row to edit touches no
    tensor. `edits` replaces the platform's operators. remembered_per_slot: number of states per slot that are kept of
    requests that left, for states that do not follow from the tokens alone.
    """

    only_with_args = True
    remembered_per_slot: ClassVar[int] = 0

    def __init__(self, fd_config: FDConfig, edits: RowEdits | None = None) -> None:
        # Imported here: the API process reads Params from these modules and does not need Paddle.
        from fastdeploy_lp.model_executor.ops.row_selection import row_ops

        self._eos_token_ids = fd_config.model_config.eos_token_ids
        self._edits: RowEdits = row_ops() if edits is None else edits
        remember = self.remembered_per_slot * fd_config.scheduler_config.max_num_seqs
        self._slots: SlotStates[State] = SlotStates(self._build, remember=remember, rewound=self._rewound)

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Follows the slots and prepares this step's edits."""
        changed = self._slots.follow(share_inputs)
        if changed or self._slots.states:
            self._prepare(share_inputs, changed=changed)

    def apply(self, logits: Tensor) -> Tensor:
        """Makes the edits in place."""
        if self._slots.states:
            self._edit(logits)
        return logits

    @abstractmethod
    def _build(self, request: SlotRequest) -> State | None:
        """Returns the state of a request that has entered a slot, None if it does not use the processor."""

    def _rewound(self, state: State, request: SlotRequest) -> State | None:  # noqa: ARG002 - for clocks and counts
        """Returns the state of a request whose last tokens were taken back; `state` is its state before."""
        return self._build(request)

    @abstractmethod
    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:
        """Prepares this step's edits; `changed` is True if the rows differ from the last step's."""

    @abstractmethod
    def _edit(self, logits: Tensor) -> None:
        """Edits logits [rows, vocab_size]; runs again in a step if another processor of the chain has failed."""
