"""Decode passes, recorded once for each of several batch sizes and replayed afterwards."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import paddle
from paddle import Tensor

from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
from fastdeploy_lp.model_executor.layers.attention import AttentionBackend, AttentionBatch, DecodeBatch

Run = Callable[[], None]
Compute = Callable[[AttentionBatch], Tensor]
Capture = Callable[[Run], Run | None]


def bucket_sizes(max_num_seqs: int) -> list[int]:
    """Returns the powers of two below `max_num_seqs`, and this number itself."""
    powers = [1 << exponent for exponent in range((max_num_seqs - 1).bit_length())]
    return [*powers, max_num_seqs]


@dataclass(frozen=True)
class Bucket:
    """One batch size: the inputs and outputs of its passes, and the function that runs a pass."""

    batch: DecodeBatch
    output: Tensor
    run: Run


class DecodeGraphs:
    """Hidden states of decode passes, computed in batches of fixed sizes padded with rows without a sequence.

    A pass of n sequences runs in the smallest bucket that holds them; its inputs go where the recording reads
    them. `record` makes them at start-up; what is recorded may neither read from the device nor copy to it.
    """

    def __init__(self, buckets: Sequence[Bucket], sizes: Sequence[int]) -> None:
        self._buckets = buckets
        self._sizes = sizes

    @classmethod
    def record(
        cls, sizes: Sequence[int], attention: AttentionBackend, compute: Compute, capture: Capture
    ) -> DecodeGraphs | None:
        """Graphs for ascending batch sizes; None for a backend or a device that repeats no passes.

        compute: from a pass to the hidden states [rows, hidden_size] that it asks for. capture: `Platform.capture`.
        """
        buckets = []
        # Largest first: the device keeps all recordings in one pool, where the smaller ones fit into its memory.
        for size in reversed(sizes):
            batch = attention.decode_batch(size)
            bucket = None if batch is None else _record(batch, compute, capture)
            if bucket is None:
                return None
            buckets.append(bucket)
        return cls(buckets[::-1], sizes)

    def takes(self, chunks: Sequence[SequenceChunk]) -> bool:
        """Returns True if these chunks are a decode pass that fits a bucket."""
        if len(chunks) > self._sizes[-1]:
            return False
        return all(len(chunk.token_ids) == 1 == chunk.num_outputs and chunk.start > 0 for chunk in chunks)

    def __call__(self, chunks: Sequence[SequenceChunk], token_ids: Tensor | None = None) -> Tensor:
        """Returns the hidden states [chunks, hidden_size], in separate memory.

        token_ids: integers [chunks] on the device in place of the chunks' own.
        """
        bucket = self._buckets[bisect_left(self._sizes, len(chunks))]
        bucket.batch.fill(chunks)
        if token_ids is not None:
            write_tokens(bucket.batch, token_ids)
        bucket.run()
        # The next pass overwrites the output; hidden states kept from this pass must not change.
        return bucket.output[: len(chunks)].clone()


def write_tokens(batch: AttentionBatch, token_ids: Tensor) -> None:
    """Writes tokens of the device, integers [chunks], to a pass of chunks of one token each; the host does not wait."""
    place = batch.token_ids[: token_ids.shape[0]]
    place.copy_(token_ids.astype(place.dtype), False)


def _record(batch: DecodeBatch, compute: Compute, capture: Capture) -> Bucket | None:
    output = paddle.empty_like(compute(batch))

    def run() -> None:
        paddle.assign(compute(batch), output)

    repeated = capture(run)
    return None if repeated is None else Bucket(batch, output, repeated)
