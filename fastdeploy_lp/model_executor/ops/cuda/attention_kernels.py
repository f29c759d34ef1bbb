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

# A warp loads 16 keys at once, of one block.
BLOCK_SIZE_STEP = 16
WARP, MOST_THREADS = 32, 128
# A large GPU holds about 1,500 of these warps. More blocks would mostly find no split of theirs. Not measured yet.
SPLIT_BLOCKS = 8192


class AttentionStruct(ctypes.Structure):
    """`Attention` of `passes.cuh`, field by field."""

    _fields_ = (
        *((name, c_void_p) for name in ("qkv", "keys", "values", "out", "cos", "sin")),
        *((name, c_void_p) for name in ("tables", "contexts", "first_rows", "tiles", "partials")),
        *((name, c_int32) for name in ("rows", "seqs", "width", "heads", "kv_heads", "block_size")),
        *((name, c_int32) for name in ("num_tiles", "most_splits")),
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
        self._variant = f"{element}_{shape.head_dim}"
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
        self._launch("store", (batch.rows, 1), MOST_THREADS, given)
        if plan.split_tiles:
            partials = self._device.empty(partial_bytes(plan.split_rows, plan.most_splits, shape))
            split = _changed(given, partials=partials.address, rows=plan.split_rows)
            across = plan.split_tiles * shape.kv_heads
            self._launch("split", (across, min(plan.most_splits, -(-SPLIT_BLOCKS // across))), WARP, split)
            if plan.most_splits > 1:
                warps = plan.split_rows * shape.heads
                self._launch("merge", (-(-warps // (MOST_THREADS // WARP)), 1), MOST_THREADS, split)
        others = len(plan.tiles) - plan.split_tiles
        if others:
            tiles = batch.tiles + plan.split_tiles * plan.tiles.itemsize * 3
            whole = _changed(given, tiles=tiles, num_tiles=others)
            self._launch("whole", (-(-others // (MOST_THREADS // WARP)), shape.kv_heads), MOST_THREADS, whole)

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
            num_tiles=len(batch.plan.tiles),
            most_splits=batch.plan.most_splits,
            scale=shape.head_dim**-0.5 * math.log2(math.e),
        )

    def _launch(self, kernel: str, grid: tuple[int, int], threads: int, given: AttentionStruct) -> None:
        self._device.launch(f"fdlp_{kernel}_{self._variant}", grid, threads, given)


def why_unsupported(shape: HeadShape, element: str, block_size: int) -> str | None:
    """Returns the reason why the kernels cannot compute a model; None if they can."""
    if element not in ELEMENTS:
        return f"elements of type {element}; the kernels have {', '.join(ELEMENTS)}"
    if shape.head_dim not in HEAD_DIMS:
        return f"head_dim {shape.head_dim}; the kernels have {', '.join(map(str, HEAD_DIMS))}"
    if shape.heads % shape.kv_heads or shape.group > TILE_ROWS:
        return f"{shape.heads} query heads and {shape.kv_heads} KV heads; the kernels share one among 1 to {TILE_ROWS}"
    if block_size % BLOCK_SIZE_STEP:
        return f"blocks of {block_size} tokens; the kernels have multiples of {BLOCK_SIZE_STEP}"
    return None


def _changed(given: AttentionStruct, **fields: Any) -> AttentionStruct:
    made = AttentionStruct.from_buffer_copy(given)
    for name, value in fields.items():
        setattr(made, name, value)
    return made
