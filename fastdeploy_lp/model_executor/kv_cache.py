"""The tensors of the paged KV cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import paddle
from paddle import Tensor

from fastdeploy_lp.platforms import current_platform, to_device

HALF_MAX = 65504.0


class LayerKVCache:
    """One layer's keys and values: [num_blocks * kv_heads, block_size * head_dim] each, from `allocate` on.

    A row is one block of one head, so that gathering a sequence's rows gives [kv_heads, context, head_dim] without a
    permuted copy. Block 0 is the null block: it is never written and fills up shorter sequences of a group.
    With `half`, what is kept is rounded to float16; it stays in float32, which the products take.
    value_dim: elements of a value, if it has another number of them than a key.
    """

    keys: Tensor
    values: Tensor

    def __init__(
        self, num_kv_heads: int, block_size: int, head_dim: int, *, value_dim: int | None = None, half: bool = False
    ) -> None:
        self._num_kv_heads = num_kv_heads
        self._block_size = block_size
        self._head_dim = head_dim
        self._value_dim = head_dim if value_dim is None else value_dim
        self._half = half

    def allocate(self, num_blocks: int) -> None:
        """Make room for `num_blocks` blocks, the null block included; once, before the first `write`."""
        # Zeros, not empty: a masked position still enters 0 * value, which must not be NaN.
        platform = current_platform()
        rows = num_blocks * self._num_kv_heads
        self.keys = platform.zeros([rows, self._block_size * self._head_dim], "float32")
        self.values = platform.zeros([rows, self._block_size * self._value_dim], "float32")
        self._key_rows = self.keys.reshape([-1, self._head_dim])
        self._value_rows = self.values.reshape([-1, self._value_dim])

    def write(self, cache_rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [tokens * kv_heads, their size] at `cache_rows`, in place."""
        if self._half:
            keys, values = (x.clip(-HALF_MAX, HALF_MAX).astype("float16").astype("float32") for x in (keys, values))
        paddle.scatter_(self._key_rows, cache_rows, keys)
        paddle.scatter_(self._value_rows, cache_rows, values)

    def copy_rows(self, source: Tensor, target: Tensor) -> None:
        """Copy keys and values from the rows `source` to the rows `target`, in place."""
        for kept in (self.keys, self.values):
            paddle.scatter_(kept, target, paddle.gather(kept, source))


class LayerCopier:
    """Copies blocks in all layers; see `BlockCopier`."""

    def __init__(self, caches: Sequence[LayerKVCache], num_kv_heads: int) -> None:
        self._caches = caches
        self._num_kv_heads = num_kv_heads

    def __call__(self, source: int, target: int) -> None:
        """Copy a block, in place."""
        heads = np.arange(self._num_kv_heads)
        rows = [to_device(block * self._num_kv_heads + heads) for block in (source, target)]
        for cache in self._caches:
            cache.copy_rows(*rows)
