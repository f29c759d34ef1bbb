"""Memory of a KV-cache block, to compute how many blocks fit."""

from __future__ import annotations

from dataclasses import dataclass

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.startup.cache_size import kv_bytes_per_token


@dataclass(frozen=True)
class KVCacheSpec:
    """Blocks of `block_size` tokens, each with `bytes_per_token` bytes of keys and values in all of a rank's layers.

    The layers of a model that drafts tokens count, too.
    """

    block_size: int
    bytes_per_token: int

    @classmethod
    def of(cls, fd_config: FDConfig) -> KVCacheSpec:
        """Returns the spec of a decoder with the sizes in `config.json`; raises ValueError naming a missing field."""
        cache, ranks = fd_config.cache_config, fd_config.parallel_config.tensor_parallel_size
        of_token = kv_bytes_per_token(fd_config.model_config.hf_config, cache.dtype, ranks)
        if (draft := fd_config.draft_model_config) is not None:
            of_token += kv_bytes_per_token(draft.hf_config, cache.dtype)
        return cls(cache.block_size, of_token)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block in all layers."""
        return self.block_size * self.bytes_per_token
