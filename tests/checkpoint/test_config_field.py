"""Fields of `config.json` that hold no usable number."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fastdeploy_lp.checkpoint.config_field import positive_float
from fastdeploy_lp.checkpoint.errors import CheckpointError


@pytest.mark.parametrize("value", [0, -1.5, True, "1", math.inf, math.nan, 10**400, [1]])
def test_what_is_no_positive_float_is_refused_by_name(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"rms_norm_eps is .*; it must be a number above 0"):
        positive_float({"rms_norm_eps": value}, "rms_norm_eps")


def test_whole_numbers_are_floats_as_well() -> None:
    assert positive_float({"rope_theta": 10**300}, "rope_theta") == 1e300
