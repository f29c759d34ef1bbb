"""Input of one forward pass: chunks of sequences, packed tokens and, for attention, groups of sequences with equal
lengths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

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


Int64Array = NDArray[np.int64]


@dataclass(frozen=True)
class AttentionGroup:
    """`num_seqs` sequences of `query_len` tokens each, from packed row `first_row` on.

    `to_heads` reorders rows (token, head) to (head, token) and `to_tokens` back; both None for one token, where the
    orders are the same. `blocks` [num_seqs * kv_heads * blocks] are rows of the cache; `mask`
    [num_seqs, 1, 1, query_len, context] is 0 where a query may look and -inf elsewhere; `window_masks` has such a mask
    for each length of a sliding window in the model.
    """

    first_row: int
    num_seqs: int
    query_len: int
    to_heads: Tensor | None
    to_tokens: Tensor | None
    blocks: Tensor
    mask: Tensor
    window_masks: dict[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class ForwardBatch:
    """One forward pass over `tokens` packed tokens.

    `token_ids` and `positions` are [tokens]; `cache_rows` [tokens * kv_heads] says where each token's key and value go;
    `output_rows` [rows] are the packed rows that the chunks ask for, in the order the chunks were given.
    """

    token_ids: Tensor
    positions: Tensor
    cache_rows: Tensor
    output_rows: Tensor
    groups: list[AttentionGroup]


class ForwardBatchBuilder:
    """Lays chunks out for a model with this many heads and blocks of this size.

    windows: for each sliding window, the number of tokens, itself included, that a token attends to.
    """

    def __init__(self, num_heads: int, num_kv_heads: int, block_size: int, windows: Iterable[int] = ()) -> None:
        self._num_heads = num_heads
        self._num_kv_heads = num_kv_heads
        self._block_size = block_size
        self._windows = tuple(windows)

    def build(self, chunks: Sequence[SequenceChunk]) -> ForwardBatch:
        """Chunks of one length form a group; groups are packed in ascending length, so decoding rows come first."""
        order = sorted(range(len(chunks)), key=lambda i: len(chunks[i].token_ids))
        packed = [chunks[i] for i in order]
        lengths = np.array([len(chunk.token_ids) for chunk in packed])
        ends = np.empty(len(chunks), np.int64)
        ends[order] = np.cumsum(lengths)
        wanted = [np.arange(end - chunk.num_outputs, end) for end, chunk in zip(ends, chunks, strict=True)]
        positions = [np.arange(chunk.start, chunk.start + len(chunk.token_ids)) for chunk in packed]
        cache_rows = [self._cache_rows(chunk, where) for chunk, where in zip(packed, positions, strict=True)]
        return ForwardBatch(
            token_ids=paddle.to_tensor(np.concatenate([chunk.token_ids for chunk in packed])),
            positions=paddle.to_tensor(np.concatenate(positions)),
            cache_rows=paddle.to_tensor(np.concatenate(cache_rows)),
            output_rows=paddle.to_tensor(np.concatenate(wanted)),
            groups=self._groups(packed, lengths),
        )

    def _groups(self, packed: list[SequenceChunk], lengths: NDArray[np.int_]) -> list[AttentionGroup]:
        starts = np.flatnonzero(np.diff(lengths, prepend=-1))
        ends = [*starts[1:].tolist(), len(packed)]
        rows = np.concatenate([[0], np.cumsum(lengths)])
        return [
            self._group(packed[start:end], int(rows[start])) for start, end in zip(starts.tolist(), ends, strict=True)
        ]

    def _group(self, chunks: list[SequenceChunk], first_row: int) -> AttentionGroup:
        query_len = len(chunks[0].token_ids)
        num_blocks = max(self._num_blocks(chunk) for chunk in chunks)
        # Shorter sequences are filled up with the null block, which the mask hides.
        tables = np.zeros((len(chunks), num_blocks), np.int64)
        for row, chunk in zip(tables, chunks, strict=True):
            held = self._num_blocks(chunk)
            row[:held] = chunk.block_table[:held]
        heads = np.arange(self._num_kv_heads)
        blocks = tables[:, None, :] * self._num_kv_heads + heads[None, :, None]
        to_heads, to_tokens = self._reorder(len(chunks), query_len) if query_len > 1 else (None, None)
        context = num_blocks * self._block_size
        return AttentionGroup(
            first_row=first_row,
            num_seqs=len(chunks),
            query_len=query_len,
            to_heads=to_heads,
            to_tokens=to_tokens,
            blocks=paddle.to_tensor(blocks.reshape(-1)),
            mask=paddle.to_tensor(_causal_mask(chunks, query_len, context)),
            window_masks={
                window: paddle.to_tensor(_causal_mask(chunks, query_len, context, window)) for window in self._windows
            },
        )

    def _num_blocks(self, chunk: SequenceChunk) -> int:
        return -(-(chunk.start + len(chunk.token_ids)) // self._block_size)

    def _cache_rows(self, chunk: SequenceChunk, positions: Int64Array) -> Int64Array:
        blocks = chunk.block_table[positions // self._block_size]
        rows = blocks[:, None] * self._num_kv_heads + np.arange(self._num_kv_heads)[None, :]
        found: Int64Array = (rows * self._block_size + (positions % self._block_size)[:, None]).reshape(-1)
        return found

    def _reorder(self, num_seqs: int, query_len: int) -> tuple[Tensor, Tensor]:
        rows = np.arange(num_seqs * query_len * self._num_heads)
        by_token = rows.reshape(num_seqs, query_len, self._num_heads)
        by_head = rows.reshape(num_seqs, self._num_heads, query_len)
        to_heads = by_token.transpose(0, 2, 1).reshape(-1)
        to_tokens = by_head.transpose(0, 2, 1).reshape(-1)
        return paddle.to_tensor(to_heads), paddle.to_tensor(to_tokens)


def _causal_mask(
    chunks: list[SequenceChunk], query_len: int, context: int, window: int | None = None
) -> NDArray[np.float32]:
    starts = np.array([chunk.start for chunk in chunks])
    last_visible = (starts[:, None] + np.arange(query_len)[None, :])[:, :, None]
    positions = np.arange(context)[None, None, :]
    hidden = positions > last_visible
    if window is not None:
        hidden |= positions <= last_visible - window
    mask = np.where(hidden, np.float32(-np.inf), np.float32(0.0))
    return mask[:, None, None]
