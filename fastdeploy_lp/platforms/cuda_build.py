"""The installed CUDA build of Paddle, seen without importing it."""

from __future__ import annotations

import functools
import importlib.metadata
from ctypes.util import find_library

from packaging.requirements import Requirement

CUDA_BUILD = "paddlepaddle-gpu"
# Libraries whose name is not that of their package; "" for a package without one.
LIBRARIES = {
    "cuda-runtime": "cudart",
    "cuda-nvrtc": "nvrtc",
    "cuda-cupti": "cupti",
    "cuda-cccl": "",
    "nvjitlink": "nvJitLink",
    "nvtx": "nvToolsExt",
    "cusparselt": "cusparseLt",
}


@functools.cache
def cuda_build_is_installed() -> bool:
    """Returns True if Paddle's package for CUDA is installed."""
    return _is_installed(CUDA_BUILD)


def missing_libraries() -> str | None:
    """Returns a line naming the NVIDIA packages without which the CUDA build cannot be imported; None if it can.

    Libraries of the system, for example of a CUDA toolkit, need no package.
    """
    missing = [package for package in _required_packages() if not _is_installed(package) and not _has_library(package)]
    if not missing:
        return None
    return f"{CUDA_BUILD} needs packages that are not installed: {', '.join(missing)}"


def _required_packages() -> list[str]:
    if not cuda_build_is_installed():
        return []
    requirements = map(Requirement, importlib.metadata.requires(CUDA_BUILD) or ())
    return [
        each.name
        for each in requirements
        if each.name.startswith("nvidia-") and (each.marker is None or each.marker.evaluate({"extra": ""}))
    ]


def _has_library(package: str) -> bool:
    """Returns True if the loader finds the library of a package such as `nvidia-cublas-cu12`."""
    name = package.removeprefix("nvidia-").rpartition("-cu")[0] or package.removeprefix("nvidia-")
    library = LIBRARIES.get(name, name)
    return not library or find_library(library) is not None


def _is_installed(package: str) -> bool:
    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
