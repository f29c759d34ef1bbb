"""vLLM's buffers of slot-keyed state: host arrays with copies beside the logits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from fastdeploy_lp.logits_processor.dialects.torch_bridge import on_device


class UvaBackedTensor:
    """An array for host writes: `np` and `cpu` share memory; `copy_to_uva` copies them to `gpu`."""

    def __init__(self, size: int | Sequence[int], dtype: torch.dtype, max_concurrency: int | None = None) -> None:  # noqa: ARG002
        self.dtype = dtype
        self.cpu = torch.zeros(size, dtype=dtype)
        self.np = self.cpu.numpy()
        self.gpu = on_device(self.np)

    def copy_to_uva(self, n: int | None = None) -> torch.Tensor:
        """Sets `gpu` to a copy of the first `n` rows, of all by default, and returns it."""
        self.gpu = on_device(self.np[:n])
        return self.gpu


class StagedWriteTensor:
    """A tensor `gpu` whose writes are collected, and made by `apply_write`."""

    def __init__(
        self,
        size: int | Sequence[int],
        dtype: torch.dtype,
        device: Any,
        max_concurrency: int | None = None,  # noqa: ARG002 - vLLM's
        uva_instead_of_gpu: bool = False,  # noqa: ARG002 - vLLM's
    ) -> None:
        """Raises ValueError for a dtype other than int32, int64 and float32."""
        allowed = (torch.int32, torch.int64, torch.float32)
        if dtype not in allowed:
            raise ValueError(f"dtype: must be one of {', '.join(map(str, allowed))}, not {dtype}")
        self.dtype, self.device = dtype, device
        self.gpu = torch.zeros(size, dtype=dtype, device=device)
        self.num_rows = self.gpu.shape[0]
        self._staged: list[tuple[int, list[Any]]] = []

    def stage_write(self, index: int, start: int, x: Iterable[int] | Iterable[float]) -> None:
        """Collects a write of values to a row, from the column `start` on."""
        if index < 0 or start < 0:
            raise ValueError(f"index, start: must not be negative, but are {index} and {start}")
        self._staged.append((index * self.gpu.stride(0) + start, list(x)))

    def stage_write_elem(self, index: int, x: float) -> None:
        """Collects a write of one value to the beginning of a row."""
        self.stage_write(index, 0, [x])

    def apply_write(self) -> None:
        """Makes the collected writes in their order."""
        flat = self.gpu.view(-1)
        for begin, values in self._staged:
            flat[begin : begin + len(values)] = on_device(torch.tensor(values, dtype=self.dtype).numpy())
        self.clear_staged_writes()

    def clear_staged_writes(self) -> None:
        """Drops the collected writes."""
        self._staged = []
