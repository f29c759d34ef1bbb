"""vLLM's helpers: loggers, functions, and the release whose interface the stand-ins have."""

from __future__ import annotations

import functools
import importlib
import logging
import uuid
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

# The local part shows that this is not a build of vLLM.
__version__ = "0.32.0+fastdeploy.lp"
__version_tuple__ = (0, 32, 0, "fastdeploy.lp")


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


def random_uuid() -> str:
    """Returns 32 random hexadecimal digits."""
    return uuid.uuid4().hex


def cdiv(a: int, b: int) -> int:
    """Returns a / b, rounded up."""
    return -(a // -b)


def is_pin_memory_available() -> bool:
    """Returns False, as processors' constructors receive it."""
    return False


def resolve_obj_by_qualname(qualname: str) -> Any:
    """Returns the object at "module.name"; raises ImportError or AttributeError if there is none."""
    module, _, name = qualname.rpartition(".")
    return getattr(importlib.import_module(module), name)


def async_tensor_h2d(data: Any, device: Any = None, dtype: Any = None, out: Any = None, **_: Any) -> Any:
    """Returns a copy of the data as a torch tensor on `device`, or in the tensor `out`, with the copy complete.

    vLLM's older releases have `dtype` before the device; both orders are understood.
    """
    import torch

    if isinstance(device, torch.dtype) or isinstance(dtype, str | torch.device):
        device, dtype = dtype, device
    made = torch.as_tensor(data, dtype=dtype, device=device)
    return out.copy_(made) if isinstance(out, torch.Tensor) else made.clone()


def gpu_sync_allowed(first_only: bool = False) -> AbstractContextManager[None]:  # noqa: ARG001 - vLLM's
    """Does nothing: no check for waits on the device runs here."""
    return nullcontext()


def guard_cuda_initialization() -> AbstractContextManager[None]:
    """Does nothing: no process here is forked from one that uses CUDA."""
    return nullcontext()
