"""Small vLLM helpers that processors import."""

from __future__ import annotations

import importlib
import uuid
from contextlib import AbstractContextManager, nullcontext
from typing import Any


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


def async_tensor_h2d(data: Any, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    """Returns the data as a torch tensor on `device`, with the copy complete."""
    import torch

    return torch.as_tensor(data, dtype=dtype, device=device)


def guard_cuda_initialization() -> AbstractContextManager[None]:
    """Does nothing: no process here is forked from one that uses CUDA."""
    return nullcontext()
