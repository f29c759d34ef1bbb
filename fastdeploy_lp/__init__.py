"""fastdeploy_lp: a serving backend on PaddlePaddle built around logits processors."""

import logging

from fastdeploy_lp.config import EngineArgs, FDConfig
from fastdeploy_lp.entrypoints.async_llm import AsyncLLM
from fastdeploy_lp.entrypoints.llm import LLM
from fastdeploy_lp.logits_processor import LogitsProcessor
from fastdeploy_lp.pooling_params import PoolingParams
from fastdeploy_lp.sampling_params import SamplingParams
from fastdeploy_lp.version import __version__

# Inside another program the library speaks up only when something is wrong; the server turns this up.
logging.getLogger(__name__).setLevel(logging.WARNING)

__all__ = [
    "LLM",
    "AsyncLLM",
    "EngineArgs",
    "FDConfig",
    "LogitsProcessor",
    "PoolingParams",
    "SamplingParams",
    "__version__",
]
