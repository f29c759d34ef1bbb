"""NVIDIA packages that the CUDA build of Paddle needs, missed before a worker starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.gpu_config import gpu_fd_config

from fastdeploy_lp.platforms import GpuPlatform, cuda_build
from fastdeploy_lp.platforms import gpu as gpu_module

NEEDED = ["nvidia-cublas-cu12==12.6.4.1", "nvidia-cuda-runtime-cu12", 'nvidia-nccl-cu12; platform_system == "Linux"']


def install(folder: Path, name: str, requires: list[str] | None = None) -> None:
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        "Version: 3.3.1",
        *(f"Requires-Dist: {r}" for r in requires or []),
    ]
    info = folder / f"{name.replace('-', '_')}-3.3.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("\n".join(lines) + "\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages with a CUDA build, on a system without any CUDA library."""
    needed = [*NEEDED, "numpy", 'nvidia-nvtx-cu12; platform_system == "Windows"', "nvidia-cuda-cccl-cu12"]
    install(tmp_path, cuda_build.CUDA_BUILD, needed)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(cuda_build, "find_library", lambda _: None)
    cuda_build.cuda_build_is_installed.cache_clear()
    monkeypatch.setattr(gpu_module, "compute_capabilities", lambda _: [(9, 0)])
    yield tmp_path
    cuda_build.cuda_build_is_installed.cache_clear()


def test_missing_libraries_are_named_before_the_worker_starts(site: Path) -> None:
    install(site, "nvidia-cublas-cu12")
    with pytest.raises(ValueError, match="that are not installed: nvidia-cuda-runtime-cu12, nvidia-nccl-cu12; install"):
        GpuPlatform().check_and_update_config(gpu_fd_config())


def test_a_complete_installation_is_accepted(site: Path) -> None:
    for name in ("nvidia-cublas-cu12", "nvidia-cuda-runtime-cu12", "nvidia-nccl-cu12"):
        install(site, name)
    assert cuda_build.missing_libraries() is None


@pytest.mark.usefixtures("site")
def test_libraries_of_the_system_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_build, "find_library", lambda name: f"lib{name}.so" if name != "nccl" else None)
    assert (
        cuda_build.missing_libraries()
        == f"{cuda_build.CUDA_BUILD} needs packages that are not installed: nvidia-nccl-cu12"
    )
    asked: list[str] = []
    monkeypatch.setattr(cuda_build, "find_library", lambda name: asked.append(name) or f"lib{name}.so")
    assert cuda_build.missing_libraries() is None
    assert asked == ["cublas", "cudart", "nccl"]


def test_without_a_cuda_build_nothing_is_missing() -> None:
    assert cuda_build.missing_libraries() is None
