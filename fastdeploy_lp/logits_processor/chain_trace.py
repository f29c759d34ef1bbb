"""Interface for tracing some rows of a step through the chain."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from paddle import Tensor


class ChainTrace(ABC):
    """Trace of the rows of `slots` through the chain."""

    @property
    @abstractmethod
    def slots(self) -> Sequence[int]:
        """Traced slots that have a row in this step, ascending."""

    @abstractmethod
    def restart(self) -> None:
        """Discards this step's records: the chain begins, or begins again because a processor failed."""

    @abstractmethod
    def ran(self, name: str, slots: Sequence[int], rows: NDArray[np.int64], logits: Tensor, seconds: float) -> None:
        """Records a processor's run on these slots, which are `rows` of its result, logits [rows, vocab_size]."""

    @abstractmethod
    def did_not_run(self, name: str, slots: Sequence[int], status: str) -> None:
        """Records that a processor that these slots use was left out, for the reason `status`."""
