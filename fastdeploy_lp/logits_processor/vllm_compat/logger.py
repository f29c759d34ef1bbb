"""vLLM's loggers: Python's, with methods that log a message only once."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Hashable
from typing import Any

LEVELS = ("debug", "info", "warning", "error")


def init_logger(name: str) -> logging.Logger:
    """The logger of this name, with `debug_once`, `info_once`, `warning_once` and `error_once`."""
    logger = logging.getLogger(name)
    for level in LEVELS:
        if not hasattr(logger, f"{level}_once"):
            setattr(logger, f"{level}_once", _once(getattr(logger, level)))
    return logger


def _once(log: Callable[..., None]) -> Callable[..., None]:
    # A message that repeats with ever new arguments would be kept for each of them.
    @functools.lru_cache(maxsize=1024)
    def first_time(message: str, *arguments: Hashable) -> None:
        log(message, *arguments, stacklevel=3)

    def log_once(message: str, *arguments: Hashable, scope: Any = None) -> None:  # noqa: ARG001 - vLLM's signature
        first_time(message, *arguments)

    return log_once
