"""What the chain tells of a step to whoever traces some of its rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from paddle import Tensor


class ChainTrace(ABC):
    """Follows the rows of `slots` through the chain."""

    @property
    @abstractmethod
    def slots(self) -> Sequence[int]:
        """The slots that are traced and have a row in this step, ascending."""

    @abstractmethod
    def restart(self) -> None:
        """The chain begins, or begins again because a processor failed: what was told of it is void."""

    @abstractmethod
    def ran(self, name: str, slots: Sequence[int], rows: NDArray[np.int64], logits: Tensor, seconds: float) -> None:
        """A processor worked on these slots, which are `rows` of what it left behind, logits [rows, vocab_size]."""

    @abstractmethod
    def did_not_run(self, name: str, slots: Sequence[int], status: str) -> None:
        """A processor that these slots use was left out, for the reason `status`."""
