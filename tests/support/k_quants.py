"""Weights in GGUF's K-quants: blocks of random bits, and checkpoints that hold them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from fastdeploy_lp.checkpoint.blocks import BLOCK_TYPES
from fastdeploy_lp.checkpoint.safetensors_file import write_safetensors
from fastdeploy_lp.model_executor.ops.packed_weight import WeightFormat

FORMATS = {"Q4_K": WeightFormat.LEVELS4K, "Q5_K": WeightFormat.LEVELS5K, "Q6_K": WeightFormat.LEVELS6K}
BLOCK = 256


def random_k_blocks(random: np.random.Generator, rows: int, weights: int, kind: str) -> NDArray[np.uint8]:
    """Blocks [rows, bytes] whose bits are all random, but for scales of the usual size, of either sign."""
    block = BLOCK_TYPES[kind]
    blocks = random.integers(0, 256, (rows * weights // block.weights, block.bytes), np.uint8)
    for at in block.scales:
        halves = (random.standard_normal(len(blocks)) * 1e-3).astype("<f2")
        blocks[:, at : at + 2] = halves.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


def dequantized(blocks: NDArray[np.uint8], kind: str) -> NDArray[np.float32]:
    """The weights by GGUF's own library."""
    return np.asarray(gguf.dequantize(blocks, GGMLQuantizationType[kind]), np.float32)


def write_k_quants(path: Path, tensors: Mapping[str, tuple[str | None, NDArray[np.generic]]]) -> None:
    """A checkpoint of blocks [rows, bytes] of a type, and of float32 arrays, which have the type None."""
    kinds = {name: kind for name, (kind, _) in tensors.items() if kind is not None}
    shapes = {name: array.shape for name, (_, array) in tensors.items()}
    for name, kind in kinds.items():
        rows, size = shapes[name]
        shapes[name] = (rows, size // BLOCK_TYPES[kind].bytes * BLOCK)
    write_safetensors(path, shapes, [array for _, array in tensors.values()], blocks=kinds)
