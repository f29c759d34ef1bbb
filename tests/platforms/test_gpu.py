"""What of the GPU platform can be seen without a GPU."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from support.gpu_config import gpu_fd_config

from fastdeploy_lp.model_executor.layers.attention import AttentionBackend
from fastdeploy_lp.model_executor.layers.attention.selection import BACKENDS
from fastdeploy_lp.platforms import GpuPlatform, find_platform
from fastdeploy_lp.platforms import gpu as gpu_module
from fastdeploy_lp.platforms.nvidia_driver import device_count, visible_devices
from fastdeploy_lp.plugins import load_class
from fastdeploy_lp.worker.worker_base import WORKERS, WorkerBase


@pytest.fixture(autouse=True)
def capability(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The compute capabilities of the devices."""
    devices = [(9, 0)] * 8
    monkeypatch.setattr(gpu_module, "compute_capabilities", lambda count: devices[:count])
    return devices


def test_this_machine_has_none_and_says_why() -> None:
    if GpuPlatform.is_supported():
        pytest.skip("this machine has a GPU that Paddle can use")
    assert GpuPlatform.what_is_missing() in (
        "the package paddlepaddle-gpu is not installed",
        "NVIDIA's driver shows no device",
    )
    with pytest.raises(ValueError, match="FASTDEPLOY_LP_PLATFORM: gpu does not fit"):
        find_platform({"FASTDEPLOY_LP_PLATFORM": "gpu"})


def test_without_a_driver_there_are_no_devices_and_no_free_memory() -> None:
    pytest.importorskip("pynvml")
    if device_count():
        pytest.skip("this machine has a GPU")
    with pytest.raises(RuntimeError, match="free memory is not known: NVIDIA's driver reports: "):
        GpuPlatform().free_memory()


def test_a_missing_nvidia_ml_py_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert device_count() == 0
    with pytest.raises(RuntimeError, match=r"free memory is not known: the package nvidia-ml-py is not installed.*gpu"):
        GpuPlatform().free_memory()


@pytest.mark.parametrize(
    ("value", "devices"),
    [(None, None), ("", []), ("-1", []), ("0", ["0"]), ("2,0", ["2", "0"]), (" GPU-8f1 , 1 ", ["GPU-8f1", "1"])],
)
def test_thevisible_devices_are_those_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, value: str | None, devices: list[str] | None
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if value is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert visible_devices() == devices


def test_asking_for_it_does_not_import_paddle() -> None:
    program = (
        "import sys; from fastdeploy_lp.platforms import GpuPlatform; GpuPlatform.is_supported(); "
        "GpuPlatform().worker_environment(); print('paddle' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def test_its_classes_are_what_they_have_to_be() -> None:
    platform = GpuPlatform()
    assert issubclass(load_class(BACKENDS[platform.get_attention_backend()]), AttentionBackend)
    assert issubclass(load_class(WORKERS[platform.get_worker_class()]), WorkerBase)


def test_its_flags_are_flags_of_paddle() -> None:
    """A misspelt flag would be passed over without a word."""
    import paddle

    flags = [name for name in GpuPlatform().worker_environment() if name.startswith("FLAGS_")]
    assert len(flags) == 3
    for name in flags:
        assert name in paddle.get_flags([name])


def test_its_environment_allows_recording_and_counts_devices_as_nvml_does() -> None:
    environment = GpuPlatform().worker_environment()
    assert environment["FLAGS_use_default_stream"] == "0"
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_configuration_that_fits_stays_as_it_is() -> None:
    for each in (gpu_fd_config(), gpu_fd_config(block_size=32, quantization="w8a16"), gpu_fd_config(head_dim=128)):
        assert GpuPlatform().check_and_update_config(each) == each


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"block_size": 16}, "block_size: 16 is not allowed on a GPU; allowed are 32, 64, 128"),
        ({"dtype": "float16"}, "kv_cache_dtype: float16 is not allowed on a GPU; allowed is auto"),
        ({"quantization": "w8a8"}, r"quantization: w8a8 is not allowed on a GPU; allowed is w8a16 \(8-bit weights\)"),
        ({"head_dim": 80}, r"config\.json: head_dim 80 is not supported on a GPU; supported are 32, 64, 96, 128"),
        (
            {"head_dim": None, "hidden_size": 64, "num_attention_heads": 4},
            r"config\.json: head_dim 16 is not supported",
        ),
    ],
)
def test_what_the_operators_do_not_have_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GpuPlatform().check_and_update_config(gpu_fd_config(**given))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"num_attention_heads": None}, r"config\.json: num_attention_heads is missing"),
        ({"head_dim": None, "hidden_size": "64"}, r"config\.json: hidden_size is '64'"),
        ({"head_dim": [64]}, r"config\.json: head_dim is \[64\]"),
    ],
)
def test_a_damaged_model_is_told_by_its_field(broken: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GpuPlatform().check_and_update_config(gpu_fd_config(**broken))


@pytest.mark.parametrize(
    ("value", "rank", "device"), [("3, 5", 0, "3"), ("3, 5", 1, "5"), ("GPU-8f1,GPU-9", 1, "GPU-9")]
)
def test_each_worker_has_one_of_the_visible_devices(
    monkeypatch: pytest.MonkeyPatch, value: str, rank: int, device: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert GpuPlatform().data_parallel_environment(rank, 2) == {"CUDA_VISIBLE_DEVICES": device}


@pytest.mark.parametrize("value", ["", "0", "0,", "0,-1"])
def test_more_workers_than_visible_devices_are_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    with pytest.raises(ValueError, match="data_parallel_size: 2 workers need as many GPUs"):
        GpuPlatform().data_parallel_environment(1, 2)


def test_defaults_are_those_that_it_allows() -> None:
    platform = GpuPlatform()
    config = gpu_fd_config(block_size=platform.default_block_size, dtype=platform.kv_cache_dtype(None))
    assert platform.check_and_update_config(config) == config
