"""A single device read for several tensors."""

from __future__ import annotations

from collections.abc import Sequence
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
    if len(tensors) == 1 or current_platform().computes_on_host:
        return [tensor.numpy() for tensor in tensors]
    joined = paddle.concat([tensor.astype("float64").reshape([-1]) for tensor in tensors]).numpy()
    ends = np.cumsum([tensor.size for tensor in tensors])
    parts = np.split(joined, ends[:-1])
    return [part.reshape(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
