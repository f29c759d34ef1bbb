"""One read of device data for several tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor


def read_together(tensors: Sequence[Tensor]) -> list[NDArray[Any]]:
    """Numpy arrays of the tensors' shapes, after a single wait for the device; float64 if there are several.

    Their elements have to fit into a float64: token ids and single precision do.
    """
    if len(tensors) == 1:
        return [tensors[0].numpy()]
    joined = paddle.concat([tensor.astype("float64").reshape([-1]) for tensor in tensors]).numpy()
    ends = np.cumsum([tensor.size for tensor in tensors])
    parts = np.split(joined, ends[:-1])
    return [part.reshape(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
