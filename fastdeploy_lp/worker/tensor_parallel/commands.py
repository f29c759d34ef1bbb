"""Messages between ranks on pipes, as msgpack: model calls from the first rank, load reports from the others."""

from __future__ import annotations

import msgspec
import numpy as np

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
from fastdeploy_lp.model_executor.parallel.communicator import RankPlace


class RankStart(msgspec.Struct):
    """The first frame: configuration, the rank's place in the group, and its communicator class.

    reports: file descriptor on which the rank sends `RankLoaded`, once.
    """

    fd_config: FDConfig
    place: RankPlace
    communicator_class: str
    reports: int


class RankLoaded(msgspec.Struct):
    """Report that a rank has loaded its part of the model, or `error`, one line on why the checkpoint is unusable."""

    error: str | None = None


class InitializeCache(msgspec.Struct, tag=True):
    """`initialize_cache(num_blocks)`."""

    num_blocks: int


class WarmUp(msgspec.Struct, tag=True):
    """`warm_up(max_num_seqs)`."""

    max_num_seqs: int


class CopyBlock(msgspec.Struct, tag=True):
    """A call of the model's `BlockCopier`."""

    source: int
    target: int


class PackedChunk(msgspec.Struct, array_like=True):
    """A `SequenceChunk` with its arrays as the bytes of little-endian int64."""

    token_ids: bytes
    start: int
    block_table: bytes
    num_outputs: int

    @classmethod
    def of(cls, chunk: SequenceChunk) -> PackedChunk:
        """Returns the packed chunk."""
        tokens, table = (array.astype("<i8").tobytes() for array in (chunk.token_ids, chunk.block_table))
        return cls(tokens, chunk.start, table, chunk.num_outputs)

    def unpack(self) -> SequenceChunk:
        """Returns the chunk as passed to the first rank's model."""
        token_ids, block_table = (np.frombuffer(data, "<i8") for data in (self.token_ids, self.block_table))
        return SequenceChunk(token_ids, self.start, block_table, self.num_outputs)


class Forward(msgspec.Struct, tag=True):
    """`forward(chunks)`."""

    chunks: list[PackedChunk]


class ComputeLogits(msgspec.Struct, tag=True):
    """`compute_logits(hidden)` of hidden states of this shape, which are broadcast after the command."""

    shape: list[int]


Command = InitializeCache | WarmUp | CopyBlock | Forward | ComputeLogits
