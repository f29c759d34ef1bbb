from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.device_like import device_like

from fastdeploy_lp.worker.sampler.device_read import read_together


@pytest.fixture(scope="module", autouse=True, params=["host", "device"])
def platform(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "host":
        yield
        return
    with device_like():
        yield


shapes = st.lists(st.integers(0, 4), min_size=1, max_size=3)


@settings(max_examples=50)
@given(st.lists(st.tuples(shapes, st.sampled_from(["int64", "float32", "bool"])), min_size=1, max_size=4))
def test_what_is_read_together_is_what_was_there(kinds: list[tuple[list[int], str]]) -> None:
    rng = np.random.default_rng(len(kinds))
    arrays = [(rng.standard_normal(shape) * 2**20).astype(dtype) for shape, dtype in kinds]
    read = read_together([paddle.to_tensor(array) for array in arrays])
    assert len(read) == len(arrays)
    for array, got in zip(arrays, read, strict=True):
        assert got.shape == array.shape
        np.testing.assert_array_equal(got, array)


def test_infinities_and_great_token_ids_survive() -> None:
    ids, values = paddle.to_tensor([2**31 - 1, -1]), paddle.to_tensor([-np.inf, 1.0], "float32")
    read = read_together([ids, values])
    assert [each.tolist() for each in read] == [[2**31 - 1, -1], [-np.inf, 1.0]]
