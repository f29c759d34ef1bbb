"""A configuration that the GPU platform accepts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fastdeploy_lp.config import FDConfig
from support.tiny import tiny_fd_config


def gpu_fd_config(
    *,
    block_size: int = 64,
    dtype: str = "bfloat16",
    quantization: str | None = None,
    max_model_len: int = 64,
    ranks: int = 1,
    attention_backend: str | None = None,
    **sizes: Any,
) -> FDConfig:
    """`sizes`: fields of `config.json`."""
    made = tiny_fd_config(block_size=block_size, max_model_len=max_model_len)
    hf_config = made.model_config.hf_config | {"head_dim": 64} | sizes
    return replace(
        made,
        model_config=replace(made.model_config, hf_config=hf_config, quantization=quantization),
        cache_config=replace(made.cache_config, dtype=dtype),
        parallel_config=replace(made.parallel_config, tensor_parallel_size=ranks),
        device_config=replace(made.device_config, attention_backend=attention_backend),
    )
