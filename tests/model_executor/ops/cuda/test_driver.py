"""Without NVIDIA's driver, which these tests never need, its absence is told."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest

from fastdeploy_lp.model_executor.ops.cuda import driver
from fastdeploy_lp.model_executor.ops.cuda.driver import Context, CudaError, pointers_to


@pytest.fixture(autouse=True)
def _no_driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(driver, "_LIBRARY", "libabsent-cuda.so.1")
    driver._driver.cache_clear()
    yield
    driver._driver.cache_clear()


@pytest.mark.parametrize("open_context", [Context.of_thread, lambda: Context.of_device(0)])
def test_a_missing_driver_is_named(open_context: object) -> None:
    with pytest.raises(CudaError, match=r"NVIDIA's driver is missing: libabsent-cuda\.so\.1"):
        open_context()  # type: ignore[operator]


def test_arguments_of_a_launch_are_the_addresses_of_their_numbers() -> None:
    numbers = [ctypes.c_int32(7), ctypes.c_int64(-1), ctypes.c_void_p(64)]
    pointers = pointers_to(numbers)
    assert [ctypes.cast(pointers[0], ctypes.POINTER(ctypes.c_int32))[0]] == [7]
    assert [ctypes.cast(pointers[1], ctypes.POINTER(ctypes.c_int64))[0]] == [-1]
    assert [ctypes.cast(pointers[2], ctypes.POINTER(ctypes.c_void_p))[0]] == [64]
