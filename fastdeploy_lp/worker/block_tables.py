"""The block tables of the running sequences as the forward pass reads them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.worker.sequence import Sequence


class BlockTables:
    """One row a slot [max_num_seqs, blocks of a full context], int32; a step writes only the blocks that are new."""

    def __init__(self, max_num_seqs: int, max_blocks: int) -> None:
        self._rows = np.zeros((max_num_seqs, max_blocks), np.int32)
        self._filled = [0] * max_num_seqs

    def clear(self, slot: int) -> None:
        """Another sequence comes next; what the row still holds is written over before it is read."""
        self._filled[slot] = 0

    def row(self, sequence: Sequence) -> NDArray[np.int32]:
        """The table of a sequence in a slot, followed by entries without meaning."""
        filled, table = self._filled[sequence.slot], sequence.block_table
        row: NDArray[np.int32] = self._rows[sequence.slot]
        if filled < len(table):
            row[filled : len(table)] = table[filled:]
            self._filled[sequence.slot] = len(table)
        return row
