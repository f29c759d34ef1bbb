"""What the tests of executors share."""

from __future__ import annotations

import ctypes

import pytest

from fastdeploy_lp.model_executor.ops import compiled_ops


@pytest.fixture(scope="session")
def ops() -> ctypes.CDLL:
    """The compiled operators; tests of them have nothing to test on a machine without a compiler."""
    library = compiled_ops()
    if library is None:
        pytest.skip("no compiled operators on this machine")
    return library
