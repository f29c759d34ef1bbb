from __future__ import annotations

from typing import Any

import pytest

from fastdeploy_lp import PoolingParams
from fastdeploy_lp.request.pooling_params import POOLING_TYPES


def test_nothing_given_leaves_everything_to_the_operator_and_the_model() -> None:
    params = PoolingParams()
    assert (params.pooling, params.dimensions, params.normalize) == (None, None, True)


@pytest.mark.parametrize("pooling", [None, *POOLING_TYPES])
@pytest.mark.parametrize("dimensions", [None, 1, 10**6])
@pytest.mark.parametrize("normalize", [True, False])
def test_what_is_allowed_is_kept(pooling: str | None, dimensions: int | None, normalize: bool) -> None:
    params = PoolingParams(pooling=pooling, dimensions=dimensions, normalize=normalize)
    assert (params.pooling, params.dimensions, params.normalize) == (pooling, dimensions, normalize)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pooling": "max"}, "pooling: 'max' is none of mean, last"),
        ({"pooling": 5}, "pooling: 5 is none of"),
        ({"dimensions": 0}, "dimensions: must be an integer of at least 1, not 0"),
        ({"dimensions": -3}, "dimensions: .* not -3"),
        ({"dimensions": 1.0}, "dimensions: .* not 1.0"),
        ({"dimensions": True}, "dimensions: .* not True"),
        ({"dimensions": "8"}, "dimensions: .* not '8'"),
        ({"normalize": 1}, "normalize: must be true or false, not 1"),
        ({"normalize": None}, "normalize: must be true or false, not None"),
    ],
)
def test_everything_else_is_refused_with_what_is_allowed(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PoolingParams(**fields)


def test_a_field_that_there_is_not_is_refused() -> None:
    with pytest.raises(TypeError, match="truncate"):
        PoolingParams(truncate=True)  # type: ignore[call-arg]
