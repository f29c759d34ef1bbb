"""Tensors between Paddle and torch."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import paddle
import pytest
import torch

from fastdeploy_lp.logits_processor.dialects.torch_bridge import to_paddle, to_torch
from fastdeploy_lp.logits_processor.vllm_v1 import WrongResultError


def test_no_result_of_torch_stays_in_paddle() -> None:
    """Paddle releases such a result with a lock held; torch lets other threads run meanwhile, which may wait for it."""
    row = paddle.zeros([4])
    result = to_torch(row) + 1.0
    released = weakref.ref(result)
    made = to_paddle(result, row)
    del result
    assert released() is None
    assert made.tolist() == [1.0] * 4
    assert row.tolist() == [0.0] * 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_view_has_the_memory_of_its_tensor(dtype: str) -> None:
    tensor = paddle.zeros([2, 3], dtype=dtype)
    view = to_torch(tensor)
    view[1, 2] = 5.0
    assert view.dtype == getattr(torch, dtype)
    assert tensor.cast("float32").tolist() == [[0.0, 0.0, 0.0], [0.0, 0.0, 5.0]]
    assert to_paddle(view, tensor) is tensor


def test_results_may_have_any_strides_and_lie_in_the_same_memory() -> None:
    square = paddle.to_tensor(np.arange(4, dtype=np.float32).reshape(2, 2))
    assert to_paddle(to_torch(square).t(), square).tolist() == [[0.0, 2.0], [1.0, 3.0]]


@pytest.mark.parametrize("result", [[0.0, 0.0], torch.zeros(1), torch.zeros(2, dtype=torch.float64), None])
def test_other_results_are_refused(result: Any) -> None:
    row = paddle.ones([2])
    with pytest.raises(WrongResultError, match=r"returned .*; it must return"):
        to_paddle(result, row)
    assert row.tolist() == [1.0, 1.0]
