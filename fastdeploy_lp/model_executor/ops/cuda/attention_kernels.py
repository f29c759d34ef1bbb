"""Launches of the kernels of attention over a paged cache, on addresses: no Paddle is needed."""

from __future__ import annotations

import ctypes
import math
from ctypes import c_float, c_int32, c_void_p
from dataclasses import dataclass
from typing import Any

from fastdeploy_lp.model_executor.ops.cuda.attention_tiles import TILE_ROWS, HeadShape, TilePlan, partial_bytes
from fastdeploy_lp.model_executor.ops.cuda.device import Device
from fastdeploy_lp.model_executor.ops.cuda.sources import ELEMENTS, HEAD_DIMS

# 16 keys of one block of the cache are copied at once.
LEAST_BLOCK_SIZE = 16
WARP, THREADS = 32, 128
# A large GPU holds about 400 of these blocks. On an H200 fewer than 1,024 took longer for
# drafts, and more took as long.
SPLIT_BLOCKS = 8192
# That a thread rotates and stores: neighbors in either half of a head.
STORED_ELEMENTS = 16
# As in `kernels/attention/cache_tiles.cuh`: bytes of one element of all keys of a tile, those copied at once, and those
# of all banks of shared memory.
TILE_KEY_BYTES, COPIED_BYTES, BANK_BYTES = 128, 16, 128
ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


class AttentionStruct(ctypes.Structure):
    """`Attention` of `passes.cuh`, field by field."""

    _fields_ = (
        *((name, c_void_p) for name in ("qkv", "keys", "values", "out", "cos", "sin")),
        *((name, c_void_p) for name in ("tables", "contexts", "first_rows", "tiles", "partials")),
        *((name, c_int32) for name in ("rows", "seqs", "width", "heads", "kv_heads", "block_size")),
        ("most_splits", c_int32),
        ("scale", c_float),
    )


@dataclass(frozen=True)
class AttentionPass:
    """Integers of a pass on the device, int32, by their addresses.

    tables [seqs, width]: each sequence's blocks. contexts [seqs]: tokens of each sequence, new ones included; 0 for no
    sequence, whose rows read and write nothing. first_rows [seqs + 1]. tiles [tiles, 3]: the tiles of `plan`.
    """

    tables: int
    contexts: int
    first_rows: int
    tiles: int
    rows: int
    seqs: int
    width: int
    plan: TilePlan


@dataclass(frozen=True)
class AttentionLayerData:
    """A layer's data on the device by their addresses, of one element type, rows aligned to 32 elements.

    qkv [rows, heads + 2 * kv_heads, head_dim], of which the queries are rotated in place; keys and values [blocks,
    kv_heads, block_size, head_dim]; out [rows, heads, head_dim].
    """

    qkv: int
    keys: int
    values: int
    out: int


class AttentionKernels:
    """Rotary embedding, writes to the cache, and causal attention over it; nothing waits.

    cos, sin: addresses of float32 [positions, head_dim], the second half as the first. The device has the kernels of
    `KernelSources.attention` for `element` and the size of heads.

    Splits of long contexts follow Dao et al., "Flash-Decoding for long-context inference", 2023; but their sizes depend
    on a token's position alone, and so the bits of its result do.
    """

    def __init__(self, device: Device, shape: HeadShape, element: str, block_size: int, cos: int, sin: int) -> None:
        refusal = why_unsupported(shape, element, block_size)
        if refusal is not None:
            raise ValueError(refusal)
        self._device = device
        self._shape = shape
        self._element = element
        self._block_size = block_size
        self._cos, self._sin = cos, sin

    @property
    def shape(self) -> HeadShape:
        """The sizes for which tiles are to be planned."""
        return self._shape

    def __call__(self, data: AttentionLayerData, batch: AttentionPass) -> None:
        """Writes the keys and values of the pass to the cache, then attends to the cache."""
        shape, plan = self._shape, batch.plan
        given = self._arguments(data, batch)
        parts = (shape.heads + 2 * shape.kv_heads) * shape.head_dim // STORED_ELEMENTS
        self._launch("store", (batch.rows, -(-parts // THREADS)), THREADS, given)
        if plan.split_tiles:
            partials = self._device.empty(partial_bytes(plan.split_rows, plan.most_splits, shape))
            split = _changed(given, partials=partials.address, rows=plan.split_rows)
            across = plan.split_tiles * shape.kv_heads
            down = min(plan.most_splits, -(-SPLIT_BLOCKS // across))
            self._launch("split", (across, down), WARP, split, shared=self._tile_bytes)
            if plan.most_splits > 1:
                warps = plan.split_rows * shape.heads
                self._launch("merge", (-(-warps // (THREADS // WARP)), 1), THREADS, split)
        others = len(plan.tiles) - plan.split_tiles
        if others:
            whole = _changed(given, tiles=batch.tiles + plan.split_tiles * plan.tiles.itemsize * 3)
            threads, kept = WARP * shape.tile_warps, TILE_ROWS * shape.tile_warps * shape.head_dim * 4
            self._launch("whole", (others, shape.kv_heads), threads, whole, shared=self._tile_bytes + kept)

    @property
    def _tile_bytes(self) -> int:
        """Shared memory of two tiles of keys and of values; see `cache_tiles.cuh`."""
        row = self._shape.head_dim * ELEMENT_BYTES[self._element]
        padding = 0 if row % BANK_BYTES == 0 else COPIED_BYTES
        return 2 * 2 * TILE_KEY_BYTES // ELEMENT_BYTES[self._element] * (row + padding)

    def _arguments(self, data: AttentionLayerData, batch: AttentionPass) -> AttentionStruct:
        shape = self._shape
        return AttentionStruct(
            **vars(data),
            cos=self._cos,
            sin=self._sin,
            **{name: getattr(batch, name) for name in ("tables", "contexts", "first_rows", "tiles")},
            **{name: getattr(batch, name) for name in ("rows", "seqs", "width")},
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            block_size=self._block_size,
            most_splits=batch.plan.most_splits,
            scale=shape.head_dim**-0.5 * math.log2(math.e),
        )

    def _launch(
        self, kernel: str, grid: tuple[int, int], threads: int, given: AttentionStruct, shared: int = 0
    ) -> None:
        name = f"fdlp_{kernel}_{self._element}_{self._shape.head_dim}"
        self._device.launch(name, grid, threads, given, shared=shared)


def why_unsupported(shape: HeadShape, element: str, block_size: int) -> str | None:
    """Returns the reason why the kernels cannot compute a model; None if they can."""
    if element not in ELEMENTS:
        return f"elements of type {element}; the kernels have {', '.join(ELEMENTS)}"
    if shape.head_dim not in HEAD_DIMS:
        return f"head_dim {shape.head_dim}; the kernels have {', '.join(map(str, HEAD_DIMS))}"
    if shape.heads % shape.kv_heads or shape.group > TILE_ROWS:
        return f"{shape.heads} query heads and {shape.kv_heads} KV heads; the kernels share one among 1 to {TILE_ROWS}"
    if block_size < LEAST_BLOCK_SIZE or block_size & block_size - 1:
        return f"blocks of {block_size} tokens; the kernels have powers of 2 from {LEAST_BLOCK_SIZE} on"
    return None


def _changed(given: AttentionStruct, **fields: Any) -> AttentionStruct:
    made = AttentionStruct.from_buffer_copy(given)
    for name, value in fields.items():
        setattr(made, name, value)
    return made
