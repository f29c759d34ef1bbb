"""Selection of the attention backend."""

from __future__ import annotations

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.model_executor.dimensions import Dimensions
from fastdeploy_lp.model_executor.layers.attention.backend import AttentionBackend
from fastdeploy_lp.model_executor.layers.rotary import RotaryTables
from fastdeploy_lp.platforms import current_platform
from fastdeploy_lp.plugins import load_class

_HERE = "fastdeploy_lp.model_executor.layers.attention"
BACKENDS = {
    "paddle": f"{_HERE}.paddle_attention:PaddleAttentionBackend",
    "block": f"{_HERE}.block_attention:BlockAttentionBackend",
    "kernels": f"{_HERE}.kernel_attention:KernelAttentionBackend",
}


def attention_backend(fd_config: FDConfig, dims: Dimensions, rotary: RotaryTables) -> AttentionBackend:
    """Returns the backend that the configuration, else the platform, names; raises ValueError for an invalid name."""
    name = fd_config.device_config.attention_backend or current_platform().get_attention_backend()
    try:
        found = load_class(BACKENDS.get(name, name), AttentionBackend)
    except ValueError as error:
        raise ValueError(f"attention backend: {error}") from error
    backend: AttentionBackend = found(fd_config, dims, rotary)
    return backend
