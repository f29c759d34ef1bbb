"""Which attention backend serves."""

from __future__ import annotations

import importlib

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.model_executor.layers.attention.backend import AttentionBackend
from fastdeploy_lp.model_executor.layers.rotary import RotaryTables
from fastdeploy_lp.model_executor.models.dimensions import Dimensions
from fastdeploy_lp.platforms import current_platform


def attention_backend(fd_config: FDConfig, dims: Dimensions, rotary: RotaryTables) -> AttentionBackend:
    """The backend that the platform names; raises ValueError for a name that leads to no backend."""
    name = current_platform().get_attention_backend()
    module, _, attribute = name.partition(":")
    found = getattr(importlib.import_module(module), attribute, None)
    if not (isinstance(found, type) and issubclass(found, AttentionBackend)):
        raise ValueError(f"attention backend: {name} is no AttentionBackend; a platform names one as module:Class")
    return found(fd_config, dims, rotary)
