"""Rotary position embedding (Su et al., 2021), rotating halves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.model_executor.layers.rope_scaling import rope_frequencies


@dataclass(frozen=True)
class RotaryTables:
    """cos and sin of every position's angles, times YaRN's factor: float32 [max_model_len, head_dim / 2] each."""

    cos: NDArray[np.float32]
    sin: NDArray[np.float32]

    @classmethod
    def of(cls, hf_config: dict[str, Any], head_dim: int, max_model_len: int) -> RotaryTables:
        """Raises CheckpointError (a ValueError) for an unknown kind of scaling, listing the known ones."""
        rope = rope_frequencies(hf_config, head_dim)
        angles = np.outer(np.arange(max_model_len), rope.frequencies)
        cos, sin = (rope.attention_factor * turned(angles) for turned in (np.cos, np.sin))
        return cls(cos.astype(np.float32), sin.astype(np.float32))


class RotaryEmbedding:
    """Rotates queries and keys by their positions.

    The half rotation (x1, x2) → (-x2, x1) is a product with a signed permutation: exact, and free of the strided
    copies that slicing and concatenating halves would make.
    """

    def __init__(self, tables: RotaryTables) -> None:
        self._cos = paddle.to_tensor(np.tile(tables.cos, 2))
        self._sin = paddle.to_tensor(np.tile(tables.sin, 2))
        half = np.eye(tables.cos.shape[1], dtype=np.float32)
        zero = np.zeros_like(half)
        self._rotate_half = paddle.to_tensor(np.block([[zero, half], [-half, zero]]))

    def tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [tokens, 1, head_dim] of these positions [tokens]; one look-up serves every layer."""
        return paddle.gather(self._cos, positions).unsqueeze(1), paddle.gather(self._sin, positions).unsqueeze(1)

    def rotate(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        """x [tokens, heads, head_dim] rotated."""
        cos, sin = tables
        return x * cos + paddle.matmul(x, self._rotate_half) * sin
