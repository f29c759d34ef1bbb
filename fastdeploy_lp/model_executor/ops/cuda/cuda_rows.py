"""Operations on rows of logits with the CUDA kernels, for Paddle's tensors."""

from __future__ import annotations

import functools

import paddle
from paddle import Tensor

from fastdeploy_lp.model_executor.ops.compiled_rows import is_plain, plain
from fastdeploy_lp.model_executor.ops.cuda.device import Device
from fastdeploy_lp.model_executor.ops.cuda.paddle_device import PaddleDevice, open_device
from fastdeploy_lp.model_executor.ops.cuda.row_kernels import Logits, RowKernels
from fastdeploy_lp.model_executor.ops.cuda.sources import KernelSources
from fastdeploy_lp.model_executor.ops.paddle_rows import PaddleRowOps
from fastdeploy_lp.model_executor.ops.row_ops import (
    Bits,
    Cut,
    Draws,
    Floats,
    Int64s,
    Penalties,
    RowDistributions,
    RowLogprobs,
    TokenLists,
)


class CudaRowOps(PaddleRowOps):
    """Blocks of threads for each row, which is read a few times and never sorted; the same bits as on the CPU.

    Logits that are not a contiguous float32 tensor are converted, or left to Paddle where they change in place.
    """

    def __init__(self, device: Device, threads: int | None = None) -> None:
        super().__init__()
        self._kernels = RowKernels(device, threads)

    @classmethod
    def open(cls) -> CudaRowOps | None:
        """Returns operators for the process's GPU; None, logged once, without the compiler or the driver."""
        device = _device()
        return None if device is None else cls(device)

    def draw(self, logits: Tensor, draws: Draws, *, guard: bool) -> Tensor:  # noqa: ARG002 - always on
        """As the interface says; the guard costs nothing and is always on."""
        logits = plain(logits)
        tokens = paddle.empty([logits.shape[0]], "int64")
        self._kernels.draw(_of(logits), draws, tokens.data_ptr())
        return tokens

    def filtered(self, logits: Tensor, draws: Draws) -> Tensor:
        """As the interface says."""
        logits = plain(logits)
        result = paddle.empty_like(logits)
        self._kernels.filter(_of(logits), draws, result.data_ptr())
        return result

    def logprobs(self, logits: Tensor, chosen: Tensor, count: int, *, normalize: bool) -> RowLogprobs:
        """As the interface says; of equal tokens the first ones are listed."""
        logits = plain(logits)
        rows, size = logits.shape
        count = min(count, size)
        values = paddle.empty([rows, count + 1], "float32")
        tokens = paddle.empty([rows, count + 1], "int64")
        ranks = paddle.empty([rows], "int64")
        self._kernels.logprobs(
            *(_of(logits), chosen.data_ptr(), count),
            normalize=normalize,
            values=values.data_ptr(),
            tokens=tokens.data_ptr(),
            ranks=ranks.data_ptr(),
        )
        return RowLogprobs(values, tokens, ranks)

    def copy_rows(self, logits: Tensor, rows: Int64s, into: Tensor, at: int) -> None:
        """As the interface says."""
        logits = plain(logits)
        self._kernels.copy_rows(_of(logits), rows, into.data_ptr() + at * logits.shape[-1] * into.element_size())

    def compare(self, logits: Tensor, before: Int64s) -> RowDistributions:
        """As the interface says."""
        logits = plain(logits)
        log_sums, entropies, moved = (paddle.empty([logits.shape[0]], "float64") for _ in range(3))
        most_likely = paddle.empty([logits.shape[0]], "int64")
        self._kernels.compare(
            *(_of(logits), before),
            log_sums=log_sums.data_ptr(),
            entropies=entropies.data_ptr(),
            moved=moved.data_ptr(),
            most_likely=most_likely.data_ptr(),
        )
        return RowDistributions(log_sums, entropies, moved, most_likely)

    def penalize(self, logits: Tensor, penalties: Penalties) -> None:
        """As the interface says."""
        if not is_plain(logits):
            super().penalize(logits, penalties)
            return
        self._kernels.penalize(_of(logits), penalties)

    def ban(self, logits: Tensor, rows: Int64s, tokens: Int64s) -> None:
        """As the interface says."""
        if not is_plain(logits):
            super().ban(logits, rows, tokens)
            return
        self._kernels.ban(_of(logits), rows, tokens)

    def allow_only(self, logits: Tensor, lists: TokenLists) -> None:
        """As the interface says."""
        if not is_plain(logits):
            super().allow_only(logits, lists)
            return
        self._kernels.allow_only(_of(logits), lists)

    def mask(self, logits: Tensor, rows: Int64s, bits: Bits) -> None:
        """As the interface says."""
        if not is_plain(logits):
            super().mask(logits, rows, bits)
            return
        self._kernels.mask(_of(logits), rows, bits)

    def force(self, logits: Tensor, rows: Int64s, tokens: Int64s) -> None:
        """As the interface says."""
        if not is_plain(logits):
            super().force(logits, rows, tokens)
            return
        self._kernels.force(_of(logits), rows, tokens)

    def add(self, logits: Tensor, rows: Int64s, tokens: Int64s, values: Floats | Tensor) -> None:
        """As the interface says."""
        on_device = isinstance(values, Tensor)
        if not is_plain(logits) or (on_device and not is_plain(values)):
            super().add(logits, rows, tokens, values)
            return
        self._kernels.add(_of(logits), rows, tokens, values.data_ptr() if isinstance(values, Tensor) else values)

    def add_scaled(self, logits: Tensor, rows: Int64s, tokens: Int64s, values: Floats) -> None:
        """As the interface says."""
        if not is_plain(logits):
            super().add_scaled(logits, rows, tokens, values)
            return
        self._kernels.add_scaled(_of(logits), rows, tokens, values)

    def values_at(self, logits: Tensor, rows: Int64s, tokens: Int64s) -> Floats | Tensor:
        """As the interface says."""
        if not is_plain(logits):
            return super().values_at(logits, rows, tokens)
        values = paddle.empty([len(rows)], "float32")
        self._kernels.values_at(_of(logits), rows, tokens, values.data_ptr())
        return values

    def cut(self, logits: Tensor, cut: Cut, rows: Int64s, values: Floats) -> None:
        """As the interface says."""
        if not is_plain(logits):
            super().cut(logits, cut, rows, values)
            return
        self._kernels.cut(_of(logits), cut, rows, values)


def _of(logits: Tensor) -> Logits:
    rows, size = logits.shape
    return Logits(logits.data_ptr(), rows, size)


@functools.cache
def _device() -> PaddleDevice | None:
    return open_device(KernelSources.read(), "no CUDA kernels, Paddle's own operators edit and sample rows")
