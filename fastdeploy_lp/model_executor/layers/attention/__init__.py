"""Attention over the paged KV cache, one file a backend."""

from fastdeploy_lp.model_executor.layers.attention.backend import (
    AttentionBackend,
    AttentionBatch,
    AttentionLayer,
    DecodeBatch,
)
from fastdeploy_lp.model_executor.layers.attention.selection import attention_backend

__all__ = ["AttentionBackend", "AttentionBatch", "AttentionLayer", "DecodeBatch", "attention_backend"]
