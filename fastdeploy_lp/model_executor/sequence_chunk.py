"""One sequence's part of a forward pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32] | NDArray[np.int64]


@dataclass(slots=True)
class SequenceChunk:
    """The tokens of one sequence that this pass computes: `token_ids` [n] at positions `start` … `start + n - 1`.

    `block_table` [blocks] names the KV-cache blocks that hold the sequence, these tokens included; it may be longer.
    `num_outputs` of the last tokens are asked for: 1 to sample, 0 in the middle of a prompt, n for the whole chunk.
    """

    token_ids: IntArray
    start: int
    block_table: IntArray
    num_outputs: int = 1
