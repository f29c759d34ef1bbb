"""Logits processors: the contract, the chain, and how both are declared and checked.

Imports no engine, worker or HTTP code, and Paddle only where a tensor is created.
"""

from fastdeploy_lp.logits_processor.arguments.request import RequestArgsValidator
from fastdeploy_lp.logits_processor.base import LogitsProcessor
from fastdeploy_lp.logits_processor.chain.chain import LogitsProcessorChain
from fastdeploy_lp.logits_processor.chain.faults import ChainAbortedError, SlotFailure
from fastdeploy_lp.logits_processor.declared import DeclaredProcessor, Selection
from fastdeploy_lp.logits_processor.errors import LogitsProcessorSpecError, RequestArgsError
from fastdeploy_lp.logits_processor.late_values import PrepareRequest
from fastdeploy_lp.logits_processor.processor_args import ProcessorArgs
from fastdeploy_lp.logits_processor.registry import BUILTIN, load_processors
from fastdeploy_lp.logits_processor.token_arguments import TokenId
from fastdeploy_lp.stats import ProcessorStats

__all__ = [
    "BUILTIN",
    "ChainAbortedError",
    "DeclaredProcessor",
    "LogitsProcessor",
    "LogitsProcessorChain",
    "LogitsProcessorSpecError",
    "PrepareRequest",
    "ProcessorArgs",
    "ProcessorStats",
    "RequestArgsError",
    "RequestArgsValidator",
    "Selection",
    "SlotFailure",
    "TokenId",
    "load_processors",
]
