"""The platform names the operators on rows; Paddle's compute where those are unavailable."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from support.cuda_shim import ShimDevice
from support.row_ops import make_row_ops

from fastdeploy_lp.model_executor.ops import row_selection
from fastdeploy_lp.model_executor.ops.compiled_rows import CompiledRowOps
from fastdeploy_lp.model_executor.ops.cuda import cuda_rows, driver
from fastdeploy_lp.model_executor.ops.cuda.cuda_rows import CudaRowOps
from fastdeploy_lp.model_executor.ops.paddle_rows import PaddleRowOps
from fastdeploy_lp.model_executor.ops.row_selection import ROW_OPS, row_ops
from fastdeploy_lp.platforms import CpuPlatform, GpuPlatform
from fastdeploy_lp.plugins import load_class


class GpuLike(CpuPlatform):
    """The CPU with the GPU's choice."""

    def get_row_ops(self) -> str:
        return GpuPlatform().get_row_ops()


class NoSuchOps(CpuPlatform):
    def get_row_ops(self) -> str:
        return "fastdeploy_lp.platforms:CpuPlatform"


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(row_selection, "current_platform", GpuLike)
    monkeypatch.setattr(driver, "_LIBRARY", "libabsent-cuda.so.1")
    for cached in (cuda_rows._device, driver._driver):
        cached.cache_clear()
    yield
    for cached in (cuda_rows._device, driver._driver):
        cached.cache_clear()


def test_platforms_name_operators_that_exist() -> None:
    make_row_ops("compiled")
    assert type(row_ops()) is CompiledRowOps
    assert load_class(ROW_OPS[CpuPlatform().get_row_ops()]) is CompiledRowOps
    assert load_class(ROW_OPS[GpuPlatform().get_row_ops()]) is CudaRowOps


def test_without_a_driver_paddle_computes_and_the_log_says_so_once(
    on_a_gpu: None, caplog: pytest.LogCaptureFixture
) -> None:
    assert type(row_ops()) is PaddleRowOps
    assert type(row_ops()) is PaddleRowOps
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message.startswith(
        "no CUDA kernels, Paddle's own operators edit and sample rows, several times slower"
    )
    assert "NVIDIA's driver is missing" in record.message


def test_the_switch_does_without_the_kernels(
    on_a_gpu: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FASTDEPLOY_LP_COMPILED_OPS", "0")
    assert type(row_ops()) is PaddleRowOps
    assert not [each for each in caplog.records if each.levelno > logging.INFO]


def test_with_a_device_the_kernels_compute(on_a_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_rows, "_device", ShimDevice)
    assert type(row_ops()) is CudaRowOps
    monkeypatch.undo()


def test_a_class_that_is_none_of_these_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_selection, "current_platform", NoSuchOps)
    with pytest.raises(ValueError, match=r"operators on rows: .*must be a subclass of .*RowOps"):
        row_ops()
