"""Checks and a harness for authors of logits processors; they need neither a model nor a server."""

from fastdeploy_lp.logits_processor.testing.check import CHECK_NAMES, check_processor
from fastdeploy_lp.logits_processor.testing.claims import check_argmax_invariance
from fastdeploy_lp.logits_processor.testing.harness import ProcessorHarness, StepError
from fastdeploy_lp.logits_processor.testing.loading import standalone_fd_config
from fastdeploy_lp.logits_processor.testing.report import (
    CheckReport,
    ConformanceError,
    Finding,
    Outcome,
    StepTime,
)

__all__ = [
    "CHECK_NAMES",
    "CheckReport",
    "ConformanceError",
    "Finding",
    "Outcome",
    "ProcessorHarness",
    "StepError",
    "StepTime",
    "check_argmax_invariance",
    "check_processor",
    "standalone_fd_config",
]
