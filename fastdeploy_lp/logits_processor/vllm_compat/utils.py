"""Small helpers of vLLM's that processors import."""

from __future__ import annotations

import importlib
import uuid
from contextlib import AbstractContextManager, nullcontext
from typing import Any


def random_uuid() -> str:
    """32 random hexadecimal digits."""
    return uuid.uuid4().hex


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(a // -b)


def is_pin_memory_available() -> bool:
    """False, as in the constructor of a processor."""
    return False


def resolve_obj_by_qualname(qualname: str) -> Any:
    """The object at "module.name"; raises ImportError or AttributeError where there is none."""
    module, _, name = qualname.rpartition(".")
    return getattr(importlib.import_module(module), name)


def async_tensor_h2d(data: Any, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    """The data as a torch tensor on `device`; the copy is over when this returns."""
    import torch

    return torch.as_tensor(data, dtype=dtype, device=device)


def guard_cuda_initialization() -> AbstractContextManager[None]:
    """Does nothing: no process here is forked from one that uses CUDA."""
    return nullcontext()
