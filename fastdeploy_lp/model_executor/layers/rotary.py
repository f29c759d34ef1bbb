"""Rotary position embedding (Su et al., 2021), rotating halves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor


@dataclass(frozen=True)
class RotaryTables:
    """cos and sin of every position's angles, float32 [max_model_len, head_dim / 2] each."""

    cos: NDArray[np.float32]
    sin: NDArray[np.float32]

    @classmethod
    def of(cls, hf_config: dict[str, Any], head_dim: int, max_model_len: int) -> RotaryTables:
        """Raises ValueError for a kind of scaling that is not known, listing those that are."""
        angles = np.outer(np.arange(max_model_len), _inverse_frequencies(hf_config, head_dim))
        return cls(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))


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


def _inverse_frequencies(hf_config: dict[str, Any], head_dim: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Both spellings of published configs are read: `rope_parameters`, and `rope_theta` with `rope_scaling`."""
    parameters = hf_config.get("rope_parameters") or hf_config.get("rope_scaling") or {}
    theta = float(parameters.get("rope_theta") or hf_config.get("rope_theta") or 10000.0)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    frequencies = 1.0 / theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if kind == "default":
        return frequencies
    if kind == "linear":
        return frequencies / float(parameters["factor"])
    if kind == "llama3":
        return _llama3_frequencies(frequencies, parameters)
    raise ValueError(f"rope_scaling.rope_type: {kind!r} is not supported; supported are default, linear and llama3")


def _llama3_frequencies(
    frequencies: np.ndarray[Any, np.dtype[np.float64]], parameters: dict[str, Any]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    factor, low, high = (float(parameters[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    original = float(parameters["original_max_position_embeddings"])
    rotations = original * frequencies / (2 * np.pi)
    kept = np.clip((rotations - low) / (high - low), 0.0, 1.0)
    return frequencies * (kept + (1 - kept) / factor)
