"""A single device read for several tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.platforms import current_platform


def read_together(tensors: Sequence[Tensor]) -> list[NDArray[Any]]:
    """Returns the tensors as numpy arrays of the same shapes, after a single wait for the device.

    Several tensors are read as float64, which must represent their elements: token ids and single precision fit.
    """
    return begin_read(tensors)()


def begin_read(tensors: Sequence[Tensor]) -> Callable[[], list[NDArray[Any]]]:
    """Begins what `read_together` does; the function that it returns, to be called once, waits and returns the arrays.

    It does not wait for what was queued meanwhile, if the device allows that.
    """
    platform = current_platform()
    if platform.computes_on_host:
        return lambda: [tensor.numpy() for tensor in tensors]
    if len(tensors) == 1:
        read = platform.read_later(tensors[0])
        return lambda: [read()]
    joined = platform.read_later(paddle.concat([tensor.astype("float64").reshape([-1]) for tensor in tensors]))
    shapes, ends = [tensor.shape for tensor in tensors], np.cumsum([tensor.size for tensor in tensors])
    return lambda: [part.reshape(shape) for part, shape in zip(np.split(joined(), ends[:-1]), shapes, strict=True)]
