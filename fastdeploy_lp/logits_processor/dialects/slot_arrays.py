"""Slot arrays under the names of vLLM's buffers, as copies that one processor reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.dialects.torch_bridge import (
    beside_paddle,
    on_device,
    to_paddle,
    to_torch,
    torch_device,
)
from fastdeploy_lp.platforms import current_platform, to_device

if TYPE_CHECKING:
    from paddle import Tensor

Where = int | tuple[NDArray[np.int64], ...] | None
"""Part of an array: a row, single elements, None for all of it."""


class Tensors(ABC):
    """The tensor library of a processor."""

    @property
    @abstractmethod
    def device(self) -> Any:
        """The device, as the processor's constructor receives it."""

    def calls(self) -> AbstractContextManager[None]:
        """Returns a context for calls of the processor."""
        return nullcontext()

    @abstractmethod
    def view(self, logits: Tensor) -> Any:
        """Returns the logits as the processor's kind of tensor, in the same memory."""

    @abstractmethod
    def result(self, made: Any, logits: Tensor) -> Tensor:
        """Returns a processor's result as a Paddle tensor: `logits` itself if it was changed in place."""

    @abstractmethod
    def of(self, host: NDArray[Any]) -> Any:
        """Returns a tensor of the array on the device, in the same memory if the device has no other."""

    def update(self, tensor: Any, host: NDArray[Any], where: Where = None) -> None:  # noqa: B027
        """Repeats a write to a part of the array in its tensor; nothing to do in shared memory."""


class PaddleTensors(Tensors):
    """Paddle on the current platform."""

    @property
    def device(self) -> str:
        """The platform's type of device."""
        return current_platform().device_type

    def view(self, logits: Tensor) -> Tensor:
        """Returns the logits themselves."""
        return logits

    def result(self, made: Any, logits: Tensor) -> Tensor:  # noqa: ARG002 - the chain checks it
        """Returns the result itself."""
        result: Tensor = made
        return result

    def of(self, host: NDArray[Any]) -> Tensor:
        """Returns a view or a copy of the array."""
        view = current_platform().view_of(host)
        return to_device(host) if view is None else view

    def update(self, tensor: Tensor, host: NDArray[Any], where: Where = None) -> None:
        """Copies the part to a device with separate memory."""
        if tensor.data_ptr() == host.ctypes.data:
            return
        if where is None:
            current_platform().write(tensor, host)
        elif isinstance(where, tuple):
            tensor.index_put_(tuple(map(to_device, where)), to_device(host[where]))
        else:
            tensor[where] = to_device(host[where])


class TorchTensors(Tensors):
    """torch on the device of the logits."""

    @property
    def device(self) -> Any:
        """The `torch.device` of all torch processors."""
        return torch_device()

    def calls(self) -> AbstractContextManager[None]:
        """Returns a context in which torch and Paddle run in the order of the calls."""
        return beside_paddle()

    def view(self, logits: Tensor) -> Any:
        """Returns a torch view of the logits."""
        return to_torch(logits)

    def result(self, made: Any, logits: Tensor) -> Tensor:
        """Returns the result as a Paddle tensor."""
        return to_paddle(made, logits)

    def of(self, host: NDArray[Any]) -> Any:
        """Returns a torch view of the array, or of its copy on the device."""
        import torch

        return torch.from_numpy(host) if current_platform().computes_on_host else on_device(host)

    def update(self, tensor: Any, host: NDArray[Any], where: Where = None) -> None:
        """Copies the part to a device with separate memory."""
        if tensor.data_ptr() == host.ctypes.data:
            return
        if where is None:
            tensor.copy_(self.of(host))
        elif isinstance(where, tuple):
            tensor[tuple(map(self.of, where))] = self.of(host[where])
        else:
            tensor[where] = self.of(host[where])


class SlotArray:
    """Numbers [slots] int32: `np` on the host, `gpu` on the device, made at its first use and kept up to date."""

    def __init__(self, num_slots: int, tensors: Tensors) -> None:
        self.np = np.zeros(num_slots, np.int32)
        self._tensors = tensors
        self._gpu: Any = None

    @property
    def cpu(self) -> Any:
        """vLLM's host tensor: the tensor on the device, which is the same where torch runs."""
        return self.gpu

    @property
    def gpu(self) -> Any:
        """The tensor."""
        if self._gpu is None:
            self._gpu = self._tensors.of(self.np)
        return self._gpu

    def flush(self) -> None:
        """Repeats the host's writes in the tensor."""
        if self._gpu is not None:
            self._tensors.update(self._gpu, self.np)


class TokenArray:
    """Tokens [slots, max_model_len] int32 as `gpu`, with zeros after each request's last token.

    Most processors read no tokens: the array exists after the first use of `gpu`, and is kept up to date from then on.
    """

    def __init__(self, num_slots: int, max_model_len: int, tensors: Tensors) -> None:
        self._shape = num_slots, max_model_len
        self._tensors = tensors
        self._lens = np.zeros(num_slots, np.int64)
        self._ids: NDArray[np.int64] = np.zeros(self._shape, np.int64)
        self._host: NDArray[np.int32] | None = None
        self._gpu: Any = None

    @property
    def gpu(self) -> Any:
        """The tensor."""
        if self._host is None:
            self._host = np.zeros(self._shape, np.int32)
            for slot in np.flatnonzero(self._lens).tolist():
                self._host[slot, : self._lens[slot]] = self._ids[slot, : self._lens[slot]]
            self._gpu = self._tensors.of(self._host)
        return self._gpu

    def enter(self, slot: int, ids: NDArray[np.int64], length: int) -> None:
        """Copies the tokens of a slot's new request, `length` of ids [slots, max_model_len]."""
        before, self._lens[slot], self._ids = int(self._lens[slot]), length, ids
        if self._host is not None:
            self._host[slot, :length] = ids[slot, :length]
            self._host[slot, length:before] = 0
            self._tensors.update(self._gpu, self._host, slot)

    def extend(self, slots: NDArray[np.int64], ids: NDArray[np.int64], lens: NDArray[np.int64]) -> None:
        """Copies the new tokens of slots [n] whose requests have lens [n] tokens now."""
        self._ids = ids
        while (late := slots[self._lens[slots] < lens]).size:
            places = late, self._lens[late]
            self._lens[late] += 1
            if self._host is not None:
                self._host[places] = ids[places]
                self._tensors.update(self._gpu, self._host, places)
