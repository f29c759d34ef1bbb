"""fastdeploy_lp: a serving backend on PaddlePaddle built around logits processors."""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fastdeploy_lp.version import __version__

if TYPE_CHECKING:
    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.entrypoints.async_llm import AsyncLLM
    from fastdeploy_lp.entrypoints.llm import LLM
    from fastdeploy_lp.logits_processor import LogitsProcessor
    from fastdeploy_lp.model_executor.models.registry import ModelRegistry
    from fastdeploy_lp.plugins.io_processor import IOProcessor
    from fastdeploy_lp.plugins.stat_logger import StatLoggerBase
    from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams
    from fastdeploy_lp.request.outputs import RequestOutput
    from fastdeploy_lp.request.pooling_params import PoolingParams
    from fastdeploy_lp.request.sampling_params import RequestOutputKind, SamplingParams
    from fastdeploy_lp.request.trace import TraceParams
    from fastdeploy_lp.startup.engine_args import AsyncEngineArgs, EngineArgs

# Inside another program the library speaks up only when something is wrong; the server turns this up.
logging.getLogger(__name__).setLevel(logging.WARNING)

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "EngineArgs",
    "FDConfig",
    "GuidedDecodingParams",
    "IOProcessor",
    "LogitsProcessor",
    "ModelRegistry",
    "PoolingParams",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StatLoggerBase",
    "TraceParams",
    "__version__",
]

_HOMES = {
    "LLM": "entrypoints.llm",
    "AsyncEngineArgs": "startup.engine_args",
    "AsyncLLM": "entrypoints.async_llm",
    "EngineArgs": "startup.engine_args",
    "FDConfig": "config",
    "GuidedDecodingParams": "request.guided_decoding",
    "IOProcessor": "plugins.io_processor",
    "LogitsProcessor": "logits_processor",
    "ModelRegistry": "model_executor.models.registry",
    "PoolingParams": "request.pooling_params",
    "RequestOutput": "request.outputs",
    "RequestOutputKind": "request.sampling_params",
    "SamplingParams": "request.sampling_params",
    "StatLoggerBase": "plugins.stat_logger",
    "TraceParams": "request.trace",
}


def __getattr__(name: str) -> Any:
    """Names are loaded when they are used: a command that needs no engine starts without importing one."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
