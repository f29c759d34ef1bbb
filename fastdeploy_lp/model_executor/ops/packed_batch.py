"""Chunks laid out one behind the other, as the compiled decoder takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.model_executor.ops.structs import BatchStruct
from fastdeploy_lp.model_executor.sequence_chunk import SequenceChunk

Int32Array = NDArray[np.int32]


@dataclass(frozen=True)
class PackedBatch:
    """One pass: `struct` holds addresses into `arrays`, which live as long as this."""

    struct: BatchStruct
    arrays: tuple[Int32Array, ...]
    num_rows: int

    @classmethod
    def of(cls, chunks: Sequence[SequenceChunk], block_size: int) -> PackedBatch:
        """The chunks in the order given; every table is cut or filled up to the longest context among them."""
        lengths = np.array([len(chunk.token_ids) for chunk in chunks], np.int32)
        starts = np.array([chunk.start for chunk in chunks], np.int32)
        outputs = np.array([chunk.num_outputs for chunk in chunks], np.int32)
        query_starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        token_ids = np.concatenate([chunk.token_ids for chunk in chunks]).astype(np.int32)
        positions = _ranges(starts, lengths)
        output_rows = _ranges(query_starts[1:] - outputs, outputs)
        width = -(-int((starts + lengths).max()) // block_size)
        tables = np.zeros((len(chunks), width), np.int32)
        for row, chunk in zip(tables, chunks, strict=True):
            held = chunk.block_table[:width]
            row[: len(held)] = held
        arrays = (token_ids, positions, query_starts, tables, output_rows)
        struct = BatchStruct(
            len(token_ids), len(chunks), len(output_rows), width, *(array.ctypes.data for array in arrays)
        )
        return cls(struct, arrays, len(output_rows))


def _ranges(starts: Int32Array, lengths: Int32Array) -> Int32Array:
    """starts[i], starts[i] + 1, … lengths[i] numbers each, one behind the other."""
    ends = np.cumsum(lengths)
    found = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths) + np.repeat(starts, lengths)
    return found.astype(np.int32)
