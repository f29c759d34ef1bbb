"""Conversion between Paddle and torch tensors, without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastdeploy_lp.logits_processor.vllm_v1 import WrongResultError

if TYPE_CHECKING:
    from paddle import Tensor


def torch_device() -> Any:
    """Returns the `torch.device` that torch processors get: the CPU."""
    import torch

    return torch.device("cpu")


def to_torch(tensor: Tensor) -> Any:
    """Returns a torch view of the same memory; writes on one side are visible on the other."""
    import torch

    return torch.from_dlpack(tensor.detach())


def to_paddle(result: Any, original: Tensor) -> Tensor:
    """Returns a torch processor's result as a Paddle tensor: `original` itself if it was changed in place."""
    import paddle
    import torch

    if not isinstance(result, torch.Tensor):
        raise WrongResultError(f"returned {type(result).__name__}, not a torch tensor")
    same_memory = result.data_ptr() == original.data_ptr()
    if same_memory and list(result.shape) == list(original.shape) and list(result.stride()) == original.strides:
        return original
    return paddle.from_dlpack(result.detach().contiguous())
