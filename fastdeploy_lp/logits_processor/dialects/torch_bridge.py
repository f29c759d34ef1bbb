"""Conversion between Paddle and torch tensors, without a copy, and the place where torch computes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.vllm_v1 import require_same_kind
from fastdeploy_lp.platforms import current_platform, to_device
from fastdeploy_lp.platforms.host_memory import writable_view

if TYPE_CHECKING:
    from paddle import Tensor


def torch_device() -> Any:
    """Returns the `torch.device` of the logits, which torch processors get; raises RuntimeError if torch has none."""
    import torch

    return torch.device(current_platform().torch_device())


def beside_paddle() -> AbstractContextManager[None]:
    """Returns a context for calls of torch processors: torch's work and Paddle's run in the order of their calls."""
    return current_platform().torch_stream()


def on_device(host: NDArray[Any]) -> Any:
    """Returns a torch copy of an array beside the logits, without a wait for the device."""
    import torch

    return torch.from_numpy(host.copy()) if current_platform().computes_on_host else to_torch(to_device(host))


def token_row(token_ids: Sequence[int], like: Any) -> Any:
    """Returns a torch tensor int64 [1, tokens] beside `like`, without a wait for its device."""
    import torch

    if like.is_cpu:
        return torch.tensor([token_ids])
    return to_torch(to_device(np.array([token_ids], np.int64)))


def to_torch(tensor: Tensor) -> Any:
    """Returns a torch view of the same memory; writes on one side are visible on the other.

    On the host the view is made through numpy, which returns memory with the interpreter's lock held. torch returns it
    without this lock. Paddle then calls the deleter of memory from `paddle.from_dlpack` with a lock of its own held,
    and the deleter waits for the interpreter's lock. A thread inside `paddle.from_dlpack` holds the interpreter's lock
    and waits for Paddle's, so that neither continues.
    """
    import torch

    detached = tensor.detach()
    host = writable_view(detached)
    return torch.from_dlpack(detached) if host is None else torch.from_numpy(host)


def to_paddle(result: Any, original: Tensor) -> Tensor:
    """Returns a torch processor's result as a Paddle tensor: `original` itself if it was changed in place, else a copy.

    Not passed to `paddle.from_dlpack`: torch gives up the interpreter's lock while it releases a tensor, in this case
    with Paddle's lock held (see `to_torch`). Raises WrongResultError for a result of another shape or dtype.
    """
    import paddle

    view = to_torch(original)
    require_same_kind(result, view)
    if result.data_ptr() == view.data_ptr() and result.stride() == view.stride():
        return original
    made = paddle.empty_like(original)
    to_torch(made).copy_(result.detach())
    return made
