"""Kernels on the GPU on which Paddle computes: its stream, and memory of its allocator."""

from __future__ import annotations

import logging
import os
from typing import Any

import paddle
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.model_executor.ops.cuda.cubins import cubin_for
from fastdeploy_lp.model_executor.ops.cuda.driver import Context, CudaError, LoadedKernels
from fastdeploy_lp.model_executor.ops.cuda.nvrtc import NvrtcError
from fastdeploy_lp.model_executor.ops.cuda.sources import KernelSources
from fastdeploy_lp.model_executor.ops.library import SWITCH
from fastdeploy_lp.model_executor.ops.own_files import UntrustedFileError
from fastdeploy_lp.platforms import to_device

logger = logging.getLogger(__name__)


class PaddleArray:
    """Memory of Paddle's allocator, which reuses it only for later work on the same stream."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self.address: int = tensor.data_ptr()


class PaddleDevice(LoadedKernels):
    """Kernels on Paddle's current stream, memory of Paddle's allocator."""

    def upload(self, host: NDArray[Any]) -> PaddleArray:
        """See `Device`."""
        return PaddleArray(to_device(host))

    def empty(self, size: int) -> PaddleArray:
        """See `Device`."""
        return PaddleArray(paddle.empty([size], "uint8"))


def open_device(sources: KernelSources, otherwise: str) -> PaddleDevice | None:
    """Returns the process's GPU with these kernels; None without the compiler or the driver.

    Then the reason is logged after `otherwise`, which names what computes instead. `FASTDEPLOY_LP_COMPILED_OPS=0` does
    without kernels.
    """
    if os.environ.get(SWITCH) == "0":
        logger.info("%s=0: %s", SWITCH, otherwise)
        return None
    try:
        # Its runtime makes the context of its device current by the first work there.
        paddle.zeros([1])
        context = Context.of_thread()
        cubin = cubin_for(context.architecture, sources)
        return PaddleDevice(context, cubin, sources.kernels, _stream)
    except (CudaError, NvrtcError, UntrustedFileError, OSError) as error:
        logger.warning("%s, several times slower: %s", otherwise, error)
        return None


def _stream() -> int:
    stream: int = paddle.device.current_stream().stream_base.cuda_stream
    return stream
