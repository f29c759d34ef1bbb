"""Base of builtins that cut a row by its distribution and one number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.builtin.slot_processor import SlotProcessor
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig


class RowCutProcessor(SlotProcessor[float]):
    """Sets the tokens that a cut removes to -inf; a request's state is its number.

    argument: name of the number. cut: name of a `Cut`. off: number that removes nothing.
    """

    keeps_rows_valid = True
    argument: ClassVar[str]
    cut: ClassVar[Literal["MIN_P", "EPSILON", "ETA", "TOP_N_SIGMA", "TYPICAL", "EXCLUDE_TOP"]]
    off: ClassVar[float | None] = None

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        # Imported here, since it imports Paddle.
        from fastdeploy_lp.model_executor.ops.row_cuts import Cut

        self._cut = Cut[self.cut]
        self._values: NDArray[np.float32] = np.empty(0, np.float32)

    def _build(self, request: SlotRequest) -> float | None:
        value = request.args.get(self.argument)
        return None if value is None or value == self.off else float(value)

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:  # noqa: ARG002 - the rows tell all
        if changed:
            self._values = np.array(self._slots.states, np.float32)

    def _edit(self, logits: Tensor) -> None:
        self._cuts.cut(logits, self._cut, self._slots.rows, self._values)
