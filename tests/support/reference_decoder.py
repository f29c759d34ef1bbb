"""A decoder in plain numpy and float64, one sequence at a time.

Written from the definitions; it shares no computation with the package.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.model_executor.decoder_weights import DecoderWeights, LayerWeights, LinearWeights
from fastdeploy_lp.model_executor.models.dimensions import Dimensions

Array = NDArray[np.float64]
Rounding = Callable[[Array], Array]
GROUP = 32
LEVELS = {"w8a8": 127.0, "w8a16": 32512.0}


def reference_logits(
    weights: DecoderWeights,
    dims: Dimensions,
    tokens: NDArray[np.int64],
    *,
    quantization: str | None = None,
    half_cache: bool = False,
) -> Array:
    """Logits [tokens, vocab_size] of a whole sequence, with the roundings of a precision and a cache."""
    hidden = reference_hidden(weights, dims, tokens, quantization=quantization, half_cache=half_cache)
    head = weights.lm_head or LinearWeights(weights.embedding)
    return _Model(dims, quantization, half_cache).linear(hidden, head)


def reference_hidden(
    weights: DecoderWeights,
    dims: Dimensions,
    tokens: NDArray[np.int64],
    *,
    quantization: str | None = None,
    half_cache: bool = False,
) -> Array:
    """The same before the language-model head: hidden states [tokens, hidden_size] after the final norm."""
    model = _Model(dims, quantization, half_cache)
    hidden = model.weight(weights.embedding)[tokens]
    for layer in weights.layers:
        hidden = hidden + model.attention(layer, model.norm(hidden, layer.input_norm))
        hidden = hidden + model.feed_forward(layer, model.norm(hidden, layer.post_attention_norm))
    return model.norm(hidden, weights.norm)


def quantized_weight(weight: NDArray[np.float32]) -> Array:
    """minimum + scale * q, group by group; written for clarity, a number at a time where that is clearer."""
    out = np.empty(weight.shape)
    for row, column in np.ndindex(weight.shape[0], -(-weight.shape[1] // GROUP)):
        at = slice(column * GROUP, (column + 1) * GROUP)
        out[row, at] = quantized_group(weight[row, at])
    return out


def quantized_group(group: NDArray[np.float32]) -> Array:
    """With the scale of the GGUF block that holds the group as it is, if there is one, else 255 steps."""
    low, high = group.min(), group.max()
    most = max(low, high, key=lambda end: (abs(end), -end))
    eight_bits = np.float32(np.float16(abs(most) / np.float32(127)))
    steps = [
        ((high - low) / np.float32(15), low),
        (most / np.float32(-8), most),
        ((high - low) / np.float32(31), low),
        (most / np.float32(-16), most),
        (eight_bits, np.float32(-128) * eight_bits),
        ((high - low) / np.float32(255), low),
    ]
    for scale, minimum in steps:
        scale, minimum = np.float32(np.float16(scale)), np.float32(np.float16(minimum))
        levels = np.rint((group - minimum) / scale).clip(0, 255) if scale != 0 else np.zeros_like(group)
        taken: Array = float(minimum) + float(scale) * levels.astype(np.float64)
        if np.array_equal(taken.astype(np.float32), group):
            break
    return taken


def quantized_activations(x: Array, levels: float) -> Array:
    """The nearest of `levels` steps to either side of zero, for each row and group of 32."""
    out = np.empty_like(x)
    for start in range(0, x.shape[1], GROUP):
        group = x[:, start : start + GROUP]
        most = np.abs(group).max(axis=1, keepdims=True)
        step = np.where(most > 0, most / levels, 1.0)
        out[:, start : start + GROUP] = np.rint(group / step) * step
    return out


def in_bfloat16(x: NDArray[np.floating]) -> Array:
    """The nearest numbers with 8 significant bits."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)


class _Model:
    def __init__(self, dims: Dimensions, quantization: str | None, half_cache: bool) -> None:
        self._dims = dims
        self._quantization = quantization
        self._half_cache = half_cache

    def weight(self, weight: NDArray[np.float32]) -> Array:
        read = np.asarray(weight)
        if self._quantization == "bfloat16":
            return in_bfloat16(read)
        return read.astype(np.float64) if self._quantization is None else quantized_weight(read)

    def linear(self, x: Array, weights: LinearWeights) -> Array:
        if self._quantization == "bfloat16":
            x = in_bfloat16(x)
        elif self._quantization is not None:
            x = quantized_activations(x, LEVELS[self._quantization])
        out = x @ self.weight(weights.weight).T
        return out if weights.bias is None else out + weights.bias

    def norm(self, x: Array, weight: NDArray[np.float32]) -> Array:
        scaled: Array = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self._dims.rms_norm_eps) * weight
        return scaled

    def feed_forward(self, layer: LayerWeights, x: Array) -> Array:
        gate, up = self.linear(x, layer.gate_proj), self.linear(x, layer.up_proj)
        return self.linear(gate / (1 + np.exp(-gate)) * up, layer.down_proj)

    def attention(self, layer: LayerWeights, x: Array) -> Array:
        dims, count = self._dims, len(x)
        queries = self.linear(x, layer.q_proj).reshape(count, dims.num_heads, dims.head_dim)
        keys = self.linear(x, layer.k_proj).reshape(count, dims.num_kv_heads, dims.head_dim)
        values = self.linear(x, layer.v_proj).reshape(count, dims.num_kv_heads, dims.head_dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            queries, keys = self.norm(queries, layer.q_norm), self.norm(keys, layer.k_norm)
        queries, keys = _rotate(queries), _rotate(keys)
        if self._half_cache:
            keys, values = (part.astype(np.float16).astype(np.float64) for part in (keys, values))
        heads = np.arange(dims.num_heads) // (dims.num_heads // dims.num_kv_heads)
        scores = np.einsum("qhd,khd->hqk", queries, keys[:, heads]) / np.sqrt(dims.head_dim)
        scores = np.where(np.tri(count, dtype=bool), scores, -np.inf)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", shares, values[:, heads])
        return self.linear(mixed.reshape(count, -1), layer.o_proj)


def _rotate(x: Array) -> Array:
    """Each pair (x[d], x[d + half]) as a complex number, turned by position * 10000^(-d / half)."""
    half = x.shape[-1] // 2
    angles = np.outer(np.arange(len(x)), 10000.0 ** (-np.arange(half) / half))[:, None, :]
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], axis=-1)
