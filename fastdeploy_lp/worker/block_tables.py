"""The block tables of the running sequences as the forward pass reads them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.worker.sequence import Sequence


class BlockTables:
    """Block table rows, one per slot, int32 [max_num_seqs, blocks of a full context]; a step writes only new blocks."""

    def __init__(self, max_num_seqs: int, max_blocks: int) -> None:
        self._rows = np.zeros((max_num_seqs, max_blocks), np.int32)
        self._filled = [0] * max_num_seqs

    def clear(self, slot: int) -> None:
        """Marks the slot's row as empty; the next sequence overwrites old entries before they are read."""
        self._filled[slot] = 0

    def row(self, sequence: Sequence) -> NDArray[np.int32]:
        """Returns the block table of a sequence in a slot, followed by undefined entries."""
        filled, table = self._filled[sequence.slot], sequence.block_table
        row: NDArray[np.int32] = self._rows[sequence.slot]
        if filled < len(table):
            row[filled : len(table)] = table[filled:]
            self._filled[sequence.slot] = len(table)
        return row
