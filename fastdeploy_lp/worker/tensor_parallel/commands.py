"""What ranks say to each other on pipes, as msgpack: the first one calls of the model, the others that they loaded."""

from __future__ import annotations

import msgspec
import numpy as np

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.model_executor.parallel.communicator import RankPlace
from fastdeploy_lp.model_executor.sequence_chunk import SequenceChunk


class RankStart(msgspec.Struct):
    """The first frame: what is served, where this rank stands, and the class through which it talks.

    reports: the descriptor on which the rank sends `RankLoaded`, once.
    """

    fd_config: FDConfig
    place: RankPlace
    communicator_class: str
    reports: int


class RankLoaded(msgspec.Struct):
    """A rank has its part of the model; or `error` says in a line why the checkpoint cannot be used."""

    error: str | None = None


class InitializeCache(msgspec.Struct, tag=True):
    """`initialize_cache(num_blocks)`."""

    num_blocks: int


class WarmUp(msgspec.Struct, tag=True):
    """`warm_up(max_num_seqs)`."""

    max_num_seqs: int


class PackedChunk(msgspec.Struct, array_like=True):
    """A `SequenceChunk` with its arrays as the bytes of little-endian int64."""

    token_ids: bytes
    start: int
    block_table: bytes
    num_outputs: int

    @classmethod
    def of(cls, chunk: SequenceChunk) -> PackedChunk:
        """The chunk, packed."""
        tokens, table = (array.astype("<i8").tobytes() for array in (chunk.token_ids, chunk.block_table))
        return cls(tokens, chunk.start, table, chunk.num_outputs)

    def unpack(self) -> SequenceChunk:
        """The chunk as the first rank's model got it."""
        token_ids, block_table = (np.frombuffer(data, "<i8") for data in (self.token_ids, self.block_table))
        return SequenceChunk(token_ids, self.start, block_table, self.num_outputs)


class Forward(msgspec.Struct, tag=True):
    """`forward(chunks)`."""

    chunks: list[PackedChunk]


class ComputeLogits(msgspec.Struct, tag=True):
    """`compute_logits(hidden)` of hidden states of this shape, which are broadcast behind it."""

    shape: list[int]


Command = InitializeCache | WarmUp | Forward | ComputeLogits
