"""Paged attention under the signature of PaddleFormers' attention functions.

PaddleFormers calls one function for each layer, in the order of the layers, with queries, keys and values
[1, heads, tokens, size]. It returns the attended values [1, tokens, heads * size]. All sequences of a pass are one row
of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import paddle
from paddle import Tensor

from fastdeploy_lp.model_executor.forward_batch import ForwardBatch
from fastdeploy_lp.model_executor.kv_cache import LayerCopier, LayerKVCache
from fastdeploy_lp.model_executor.layers.attention.paged_attention import HeadSizes, PagedAttention

# PaddleFormers passes each layer the first row that no longer attends to a key, cut to the layer's sliding window.
_UNLIMITED = 2**30


@dataclass(frozen=True)
class LayerAttention:
    """A layer's demand on attention. scale: the factor of its scores. window: see `PagedAttention`."""

    sizes: HeadSizes
    scale: float
    window: int | None


def row_indices() -> Tensor:
    """Returns the argument `attn_mask_startend_row_indices` of a pass, from which a layer's window is read.

    With it, PaddleFormers makes no masks: they would be [tokens, tokens] and know nothing of sequences.
    """
    return paddle.full([1, 1, 1, 1], _UNLIMITED, "int32")


class MeasuringAttention:
    """Records what each layer asks for, and attends to nothing."""

    def __init__(self) -> None:
        self.layers: list[LayerAttention] = []

    def __call__(
        self,
        module: Any,  # noqa: ARG002 - the signature is PaddleFormers'
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask_startend_row_indices: Tensor | None = None,
        scaling: float | None = None,
        **_others: Any,
    ) -> tuple[Tensor, None]:
        """See the module."""
        sizes = HeadSizes(query.shape[1], key.shape[1], key.shape[3], value.shape[3])
        first = _UNLIMITED if attn_mask_startend_row_indices is None else int(attn_mask_startend_row_indices.max())
        scale = sizes.key_dim**-0.5 if scaling is None else float(scaling)
        self.layers.append(LayerAttention(sizes, scale, None if first == _UNLIMITED else first))
        return paddle.zeros([1, query.shape[2], sizes.num_heads * sizes.value_dim], query.dtype), None


class CachedAttention:
    """Attention of all layers over their paged KV caches, for the pass in `running`."""

    def __init__(self, layers: list[LayerAttention], block_size: int, *, half: bool) -> None:
        self._caches = [
            LayerKVCache(
                each.sizes.num_kv_heads, block_size, each.sizes.key_dim, value_dim=each.sizes.value_dim, half=half
            )
            for each in layers
        ]
        self._layers = [
            PagedAttention(each.sizes, each.scale, cache, each.window)
            for each, cache in zip(layers, self._caches, strict=True)
        ]
        # All layers have as many heads.
        self._num_kv_heads = layers[0].sizes.num_kv_heads
        self._batch: ForwardBatch | None = None
        self._next = 0

    def initialize_cache(self, num_blocks: int) -> None:
        """See `CausalLM`."""
        for cache in self._caches:
            cache.allocate(num_blocks)

    def block_copier(self) -> LayerCopier:
        """See `CopiesBlocks`."""
        return LayerCopier(self._caches, self._num_kv_heads)

    @contextmanager
    def running(self, batch: ForwardBatch) -> Iterator[None]:
        """Sets the pass whose layers call within."""
        self._batch, self._next = batch, 0
        try:
            yield
        finally:
            self._batch = None

    def __call__(
        self,
        module: Any,  # noqa: ARG002 - the signature is PaddleFormers'
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sink: Tensor | None = None,
        **_others: Any,
    ) -> tuple[Tensor, None]:
        """See the module. Tokens beyond the pass's own get zeros."""
        batch = self._batch
        if batch is None:
            raise RuntimeError("attention runs outside of a pass")
        layer = self._layers[self._next]
        self._next += 1
        tokens = len(batch.token_ids)
        queries, keys, values = (each[0, :, :tokens].transpose([1, 0, 2]) for each in (query, key, value))
        out = layer(queries, keys, values, batch, sink)
        if (extra := query.shape[2] - tokens) > 0:
            out = paddle.concat([out, paddle.zeros([extra, out.shape[1]], out.dtype)])
        return out.unsqueeze(0), None
