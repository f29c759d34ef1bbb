"""The tensors of the paged KV cache."""

from __future__ import annotations

import paddle
from paddle import Tensor

from fastdeploy_lp.platforms import current_platform

HALF_MAX = 65504.0


class LayerKVCache:
    """One layer's keys and values: [num_blocks * kv_heads, block_size * head_dim] each.

    A row is one block of one head, so that gathering a sequence's rows gives [kv_heads, context, head_dim] without a
    permuted copy. Block 0 is the null block: it is never written and fills up shorter sequences of a group.
    With `half`, what is kept is rounded to float16; it stays in float32, which the products take.
    """

    def __init__(
        self, num_blocks: int, num_kv_heads: int, block_size: int, head_dim: int, *, half: bool = False
    ) -> None:
        # Zeros, not empty: a masked position still enters 0 * value, which must not be NaN.
        platform = current_platform()
        shape = [num_blocks * num_kv_heads, block_size * head_dim]
        self.keys = platform.zeros(shape, "float32")
        self.values = platform.zeros(shape, "float32")
        self._half = half
        self._key_rows = self.keys.reshape([-1, head_dim])
        self._value_rows = self.values.reshape([-1, head_dim])

    def write(self, cache_rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [tokens * kv_heads, head_dim] at `cache_rows`, in place."""
        if self._half:
            keys, values = (x.clip(-HALF_MAX, HALF_MAX).astype("float16").astype("float32") for x in (keys, values))
        paddle.scatter_(self._key_rows, cache_rows, keys)
        paddle.scatter_(self._value_rows, cache_rows, values)
