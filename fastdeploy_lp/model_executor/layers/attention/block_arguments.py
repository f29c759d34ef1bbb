"""The integers of a pass that `block_multihead_attention`, our kernels and neighboring operators read, in one array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
from fastdeploy_lp.model_executor.ops.cuda.attention_tiles import HeadShape, TilePlan

Int32Array = NDArray[np.int32]
Integers = TypeVar("Integers", Int32Array, Tensor)


@dataclass(frozen=True)
class BlockLayout:
    """Counts of a pass.

    tokens: all packed tokens; the operator handles the first `operator_tokens` (of the first `operator_seqs`
    sequences). rows: packed tokens that the chunks request. width: blocks in a row of the block tables. tiles: of the
    other tokens, if our kernels compute them; else 0.
    """

    tokens: int
    operator_tokens: int
    seqs: int
    operator_seqs: int
    rows: int
    width: int
    tiles: int = 0

    @property
    def _sections(self) -> Iterator[tuple[str, list[int]]]:
        yield "token_ids", [self.tokens]
        yield "output_rows", [self.rows]
        yield "block_tables", [self.seqs, self.width]
        yield "padding_offsets", [self.operator_tokens]
        for name in ("seq_lens_encoder", "seq_lens_decoder", "seq_lens_this_time"):
            yield name, [self.operator_seqs, 1]
        yield "cum_offsets", [self.operator_seqs]
        yield "cu_seqlens", [self.operator_seqs + 1]
        if self.tiles:
            others = self.seqs - self.operator_seqs
            yield "contexts", [others]
            yield "first_rows", [others + 1]
            yield "tiles", [self.tiles, 3]

    @property
    def size(self) -> int:
        """Number of integers in the array."""
        return sum(int(np.prod(shape)) for _, shape in self._sections)

    def views(self, packed: Integers) -> dict[str, Integers]:
        """Returns views of the parts of an array or tensor int32 [size], by name."""
        found, end = {}, 0
        for name, shape in self._sections:
            begin, end = end, end + int(np.prod(shape))
            found[name] = packed[begin:end].reshape(shape)
        return found


@dataclass(frozen=True)
class BlockArguments:
    """A pass on the host: `packed` int32 [layout.size], and what the host itself has to know of it.

    max_encoder_len, max_decoder_len: the longest new prompt and the longest past of a sequence that generates; 0 for
    none. rest: the chunks that the operator does not compute, in packed order. plan: their tiles, if our kernels do.
    """

    layout: BlockLayout
    packed: Int32Array
    max_encoder_len: int
    max_decoder_len: int
    rest: list[SequenceChunk]
    plan: TilePlan | None = None

    @classmethod
    def of(
        cls, chunks: Sequence[SequenceChunk], block_size: int, max_model_len: int, heads: HeadShape | None = None
    ) -> BlockArguments:
        """Packs chunks by kind: decoding sequences, new prompts, and prompts that continue after a cached part.

        The operator reads keys from the cache for single tokens only, and assumes that new prompts begin at position 0.
        heads: sizes for our kernels, which then compute all but new prompts; new prompts come first then.
        """
        operators = {NEW} if heads else {GENERATING, NEW}
        order = sorted(range(len(chunks)), key=lambda index: _place(chunks[index], operators))
        packed = [chunks[i] for i in order]
        ours = [chunk for chunk in packed if _kind(chunk) in operators]
        rest = packed[len(ours) :]
        starts = np.array([chunk.start for chunk in packed])
        lengths = np.array([len(chunk.token_ids) for chunk in packed])
        first, ends = len(ours), starts + lengths
        plan = TilePlan.of(starts[first:].tolist(), lengths[first:].tolist(), heads) if heads and rest else None
        layout = BlockLayout(
            tokens=int(lengths.sum()),
            operator_tokens=int(lengths[:first].sum()),
            seqs=len(packed),
            operator_seqs=first,
            rows=sum(chunk.num_outputs for chunk in chunks),
            width=-(-int(ends.max()) // block_size),
            tiles=len(plan.tiles) if plan else 0,
        )
        found = cls(
            layout,
            np.zeros(layout.size, np.int32),
            max_encoder_len=max((len(chunk.token_ids) for chunk in ours if chunk.start == 0), default=0),
            max_decoder_len=max((chunk.start for chunk in ours), default=0),
            rest=rest,
            plan=plan,
        )
        views = layout.views(found.packed)
        last_rows = np.empty(len(chunks), np.int64)
        last_rows[order] = np.cumsum(lengths)
        wanted = [np.arange(end - chunk.num_outputs, end) for end, chunk in zip(last_rows, chunks, strict=True)]
        views["output_rows"][:] = np.concatenate(wanted)
        _fill_chunks(views, packed, block_size)
        fill_lengths(views, starts[:first], lengths[:first], max_model_len)
        if plan:
            views["contexts"][:] = ends[first:]
            views["first_rows"][1:] = np.cumsum(lengths[first:])
            views["tiles"][:] = plan.tiles
        return found

    @classmethod
    def of_generation(
        cls, size: int, block_size: int, max_model_len: int, heads: HeadShape | None = None
    ) -> BlockArguments:
        """Lays out at most `size` decoding sequences, for which tokens, pasts and blocks are missing yet."""
        plan = TilePlan.of_generation(size, max_model_len, heads) if heads else None
        operators, tiles = (0, len(plan.tiles)) if plan else (size, 0)
        layout = BlockLayout(size, operators, size, operators, size, -(-max_model_len // block_size), tiles)
        # A graph keeps the number that it was recorded with; the operator reserves memory by it and computes by the
        # sequences' own lengths.
        found = cls(layout, np.zeros(layout.size, np.int32), 0, max_model_len - 1 if operators else 0, [], plan)
        views = layout.views(found.packed)
        # New prompts have position 0, as rows without a sequence do: nothing but the pasts ever changes here.
        fill_lengths(views, np.zeros(operators, np.int32), np.ones(operators, np.int32), max_model_len)
        views["seq_lens_encoder"][:] = 0
        views["output_rows"][:] = np.arange(size)
        if plan:
            views["first_rows"][:] = np.arange(size + 1)
            views["tiles"][:] = plan.tiles
        return found


GENERATING, NEW, CONTINUED = range(3)


def _kind(chunk: SequenceChunk) -> int:
    if chunk.start == 0:
        return NEW
    return GENERATING if len(chunk.token_ids) == 1 else CONTINUED


def _place(chunk: SequenceChunk, operators: set[int]) -> tuple[bool, int]:
    """Returns the key by which chunks are packed: the operator's by kind, then the others by length.

    Our kernels divide the contexts of short chunks among several warps.
    """
    kind = _kind(chunk)
    return kind not in operators, kind if kind in operators else len(chunk.token_ids)


def _fill_chunks(views: dict[str, Int32Array], packed: Sequence[SequenceChunk], block_size: int) -> None:
    """Fills in tokens and blocks."""
    views["token_ids"][:] = np.concatenate([chunk.token_ids for chunk in packed])
    for row, chunk in zip(views["block_tables"], packed, strict=True):
        held = chunk.block_table[: -(-(chunk.start + len(chunk.token_ids)) // block_size)]
        row[: len(held)] = held


def fill_lengths(views: dict[str, Int32Array], starts: Int32Array, lengths: Int32Array, max_model_len: int) -> None:
    """Fills in lengths and offsets of the operator's sequences, [seqs] each; a sequence at position 0 is a new prompt.

    The operator assumes a token layout [seqs, max_model_len]: `padding_offsets` maps a packed token to its place there,
    `cum_offsets` maps the beginning of a sequence's row back to its first packed token.
    """
    first_rows = np.cumsum(lengths) - lengths
    views["seq_lens_encoder"][:, 0] = np.where(starts == 0, lengths, 0)
    views["seq_lens_decoder"][:, 0] = starts
    views["seq_lens_this_time"][:, 0] = lengths
    views["cum_offsets"][:] = np.arange(len(lengths)) * max_model_len - first_rows
    views["padding_offsets"][:] = np.repeat(views["cum_offsets"], lengths)
    views["cu_seqlens"][1:] = np.cumsum(lengths)
