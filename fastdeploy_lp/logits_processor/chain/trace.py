"""Reports of a step's processors to its trace."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.chain.entry import ChainEntry
from fastdeploy_lp.logits_processor.chain.groups import ChainGroup

if TYPE_CHECKING:
    from paddle import Tensor


class ChainTrace(ABC):
    """Trace of the rows of `slots` through the chain."""

    @property
    @abstractmethod
    def slots(self) -> Sequence[int]:
        """Traced slots that have a row in this step, ascending."""

    @abstractmethod
    def begin(self) -> None:
        """Begins a part of the chain."""

    @abstractmethod
    def restart(self) -> None:
        """Discards the records of this part of the chain, which begins again because a processor failed."""

    @abstractmethod
    def start_clock(self) -> None:
        """Starts timing the next stage."""

    @abstractmethod
    def filtered(self, slots: Sequence[int], rows: NDArray[np.int64], logits: Tensor) -> None:
        """Records the filters' effect on these slots, which are `rows` of logits [rows, vocab_size]."""

    @abstractmethod
    def ran(self, name: str, slots: Sequence[int], rows: NDArray[np.int64], logits: Tensor, seconds: float) -> None:
        """Records a processor's run on these slots, which are `rows` of its result, logits [rows, vocab_size]."""

    @abstractmethod
    def did_not_run(self, name: str, slots: Sequence[int], status: str) -> None:
        """Records that a processor that these slots use was left out, for the reason `status`."""


def tell_it_ran(
    trace: ChainTrace, group: ChainGroup, entry: ChainEntry, logits: Tensor, among: NDArray[np.int64]
) -> None:
    """Records a processor's run; row r of its result, logits [rows, vocab_size], belongs to slot `among[r]`."""
    slots = [slot for slot in _traced_slots(trace, group, entry) if slot in among]
    if slots:
        trace.ran(entry.name, slots, np.searchsorted(among, slots), logits, entry.step_seconds)


def tell_it_did_not_run(trace: ChainTrace, group: ChainGroup, entry: ChainEntry, status: str) -> None:
    """Records that a processor was left out, for the reason `status`."""
    slots = _traced_slots(trace, group, entry)
    if slots:
        trace.did_not_run(entry.name, slots, status)


def _traced_slots(trace: ChainTrace, group: ChainGroup, entry: ChainEntry) -> list[int]:
    return [slot for slot in trace.slots if slot in group.slots and entry.works_on(slot)]
