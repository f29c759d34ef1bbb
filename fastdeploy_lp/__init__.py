"""fastdeploy_lp: a serving backend on PaddlePaddle built around logits processors."""

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.entrypoints.llm import LLM
from fastdeploy_lp.logits_processor import LogitsProcessor
from fastdeploy_lp.sampling_params import SamplingParams
from fastdeploy_lp.version import __version__

__all__ = ["LLM", "FDConfig", "LogitsProcessor", "SamplingParams", "__version__"]
