"""What the KV cache of a model consists of, so that its blocks can be counted against memory."""

from __future__ import annotations

from dataclasses import dataclass

from fastdeploy_lp.cache_size import ELEMENT_BYTES
from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.model_executor.models.dimensions import Dimensions


@dataclass(frozen=True)
class KVCacheSpec:
    """Keys and values of `num_layers` layers, `num_kv_heads` heads and `head_dim` elements of `dtype` each a token."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str

    @classmethod
    def of(cls, fd_config: FDConfig) -> KVCacheSpec:
        """That of a decoder with the sizes in `config.json`; raises ValueError naming a field that it lacks."""
        dims, cache = Dimensions.from_hf_config(fd_config.model_config.hf_config), fd_config.cache_config
        return cls(dims.num_layers, dims.num_kv_heads, dims.head_dim, cache.block_size, cache.dtype)

    @property
    def bytes_per_block(self) -> int:
        """Bytes that one block takes in all layers."""
        per_token = 2 * self.num_layers * self.num_kv_heads * self.head_dim * ELEMENT_BYTES[self.dtype]
        return per_token * self.block_size
