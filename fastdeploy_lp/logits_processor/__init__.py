"""Logits processors: the contract, the chain, and how both are declared and checked.

Imports no engine, no worker and no HTTP, and Paddle only where a tensor is made.
"""

from fastdeploy_lp.logits_processor.base import LogitsProcessor
from fastdeploy_lp.logits_processor.chain import LogitsProcessorChain
from fastdeploy_lp.logits_processor.errors import RequestArgsError
from fastdeploy_lp.logits_processor.processor_args import ProcessorArgs
from fastdeploy_lp.logits_processor.registry import (
    BUILTIN,
    DeclaredProcessor,
    LogitsProcessorSpecError,
    load_processors,
)
from fastdeploy_lp.logits_processor.request_args import RequestArgsValidator

__all__ = [
    "BUILTIN",
    "DeclaredProcessor",
    "LogitsProcessor",
    "LogitsProcessorChain",
    "LogitsProcessorSpecError",
    "ProcessorArgs",
    "RequestArgsError",
    "RequestArgsValidator",
    "load_processors",
]
