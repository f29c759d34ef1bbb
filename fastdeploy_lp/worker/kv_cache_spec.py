"""What a block of the KV cache takes, so that blocks can be counted against memory."""

from __future__ import annotations

from dataclasses import dataclass

from fastdeploy_lp.cache_size import kv_bytes_per_token
from fastdeploy_lp.config import FDConfig


@dataclass(frozen=True)
class KVCacheSpec:
    """Blocks of `block_size` tokens, each of which has `bytes_per_token` bytes of keys and values in all layers."""

    block_size: int
    bytes_per_token: int

    @classmethod
    def of(cls, fd_config: FDConfig) -> KVCacheSpec:
        """That of a decoder with the sizes in `config.json`; raises ValueError naming a field that it lacks."""
        cache = fd_config.cache_config
        return cls(cache.block_size, kv_bytes_per_token(fd_config.model_config.hf_config, cache.dtype))

    @property
    def bytes_per_block(self) -> int:
        """Bytes that one block takes in all layers."""
        return self.block_size * self.bytes_per_token
