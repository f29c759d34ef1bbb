"""Consecutive chunks in the compiled decoder's input layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.model_executor.ops.structs import BatchStruct
from fastdeploy_lp.model_executor.sequence_chunk import IntArray, SequenceChunk

Int32Array = NDArray[np.int32]


@dataclass(frozen=True)
class PackedBatch:
    """One pass: `struct` holds addresses into `arrays`, which this object keeps alive."""

    struct: BatchStruct
    arrays: tuple[Int32Array, ...]
    num_rows: int

    @classmethod
    def of(cls, chunks: Sequence[SequenceChunk], block_size: int) -> PackedBatch:
        """The chunks in the order given; every table is cut or filled up to the longest context among them."""
        lengths = [len(chunk.token_ids) for chunk in chunks]
        query_starts = np.array([0, *accumulate(lengths)], np.int32)
        token_ids = np.concatenate([chunk.token_ids for chunk in chunks], dtype=np.int32)
        rows = np.arange(len(token_ids), dtype=np.int32)
        starts = np.array([chunk.start for chunk in chunks], np.int32)
        positions = rows + np.repeat(starts - query_starts[:-1], lengths)
        first_outputs = query_starts[1:] - np.array([chunk.num_outputs for chunk in chunks], np.int32)
        output_rows = rows[rows >= np.repeat(first_outputs, lengths)]
        width = -(-max(chunk.start + length for chunk, length in zip(chunks, lengths, strict=True)) // block_size)
        tables = np.concatenate([_filled(chunk.block_table, width) for chunk in chunks], dtype=np.int32)
        arrays = (token_ids, positions, query_starts, tables, output_rows)
        struct = BatchStruct(
            len(token_ids), len(chunks), len(output_rows), width, *(array.ctypes.data for array in arrays)
        )
        return cls(struct, arrays, len(output_rows))


def _filled(table: IntArray, width: int) -> NDArray[Any]:
    held = table[:width]
    return held if len(held) == width else np.pad(held, (0, width - len(held)))
