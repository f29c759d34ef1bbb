"""vLLM's loggers: Python's, with methods that log a message only once."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Hashable
from typing import Any


def init_logger(name: str) -> logging.Logger:
    """Returns the logger of this name, with `debug_once`, `info_once`, `warning_once` and `error_once`.

    Each logs at its first call with a message and its arguments, and ignores vLLM's `scope`.
    """
    logger = logging.getLogger(name)
    if not issubclass(type(logger), _Once):
        kind = type(logger)
        logger.__class__ = type(kind.__name__, (_Once, kind), {})
    return logger


class _Once:
    name: str
    debug: Callable[..., None]
    info: Callable[..., None]
    warning: Callable[..., None]
    error: Callable[..., None]

    def debug_once(self, message: str, *arguments: Hashable, scope: Any = None) -> None:  # noqa: ARG002
        _first_time(self.debug, message, *arguments)

    def info_once(self, message: str, *arguments: Hashable, scope: Any = None) -> None:  # noqa: ARG002
        _first_time(self.info, message, *arguments)

    def warning_once(self, message: str, *arguments: Hashable, scope: Any = None) -> None:  # noqa: ARG002
        _first_time(self.warning, message, *arguments)

    def error_once(self, message: str, *arguments: Hashable, scope: Any = None) -> None:  # noqa: ARG002
        _first_time(self.error, message, *arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        # A program's global logger is sent to the worker with its classes.
        return init_logger, (self.name,)


# Bounded: a message that repeats with ever new arguments must not fill the memory.
@functools.lru_cache(maxsize=1024)
def _first_time(log: Callable[..., None], message: str, *arguments: Hashable) -> None:
    log(message, *arguments, stacklevel=3)
