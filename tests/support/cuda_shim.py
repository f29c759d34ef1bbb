"""Runs the CUDA kernels on the CPU: their own sources, compiled with `cuda_shim.h`."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.model_executor.ops.build import compiler
from fastdeploy_lp.model_executor.ops.cuda.driver import pointers_to
from fastdeploy_lp.model_executor.ops.cuda.sources import KernelSources

HEADER = Path(__file__).with_name("cuda_shim.h")
# Takes the place of the kernels' own file, which is in the language of GPUs.
INSTRUCTIONS = Path(__file__).with_name("cuda_instructions.h")
# Products and sums become one instruction only where the source says so, as with NVRTC.
FLAGS = ("-std=c++17", "-O1", "-march=native", "-ffp-contract=off", "-fPIC", "-shared", "-w")
ENTRY = """
extern "C" const char* fdlp_shim_launch(
    const char* name, unsigned x, unsigned y, unsigned threads, unsigned shared, void** arguments, int order) {{
    static const std::pair<const char*, void (*)(void**)> kernels[] = {{{kernels}}};
    static std::string error;
    for (const auto& [known, kernel] : kernels) {{
        if (strcmp(known, name) != 0) continue;
        error = shim::launch(kernel, x, y, threads, shared, arguments, static_cast<shim::Order>(order));
        return error.empty() ? nullptr : error.c_str();
    }}
    return "no such kernel";
}}
"""


class Order(IntEnum):
    """The order in which the threads of a block take turns; `Order` of the header."""

    FORWARD = 0
    BACKWARD = 1
    SHUFFLED = 2


class ShimError(RuntimeError):
    """A kernel cannot run: some of its threads wait for ever, or a warp's lanes part at a shuffle."""


class HostArray:
    """Memory of the host as a device's."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        self.address: int = array.ctypes.data


class ShimDevice:
    """A `Device` whose memory is the host's, and whose kernels run at once, thread by thread in one order."""

    def __init__(self, order: Order = Order.FORWARD, sources: KernelSources | None = None) -> None:
        self._order = order
        self._library = shim_library(sources or KernelSources.read())

    def launch(self, kernel: str, grid: tuple[int, int], threads: int, *arguments: Any, shared: int = 0) -> None:
        """See `Device`; raises ShimError."""
        error = self._library.fdlp_shim_launch(
            kernel.encode(), *grid, threads, shared, pointers_to(arguments), ctypes.c_int(self._order)
        )
        if error is not None:
            raise ShimError(f"{kernel}: {error.decode()}")

    def upload(self, host: NDArray[Any]) -> HostArray:
        """See `Device`."""
        return HostArray(aligned(host.nbytes, host.reshape(-1).view(np.uint8)))

    def empty(self, size: int) -> HostArray:
        """See `Device`; what it holds is nothing that a kernel could take for its own."""
        return HostArray(aligned(size, 0xA5))


def aligned(size: int, filled: Any) -> NDArray[np.uint8]:
    """Returns bytes that begin at a multiple of 64."""
    whole = np.empty(size + 64, np.uint8)
    start = -whole.ctypes.data % 64
    part = whole[start : start + size]
    part[:] = filled
    return part


def shim_library(sources: KernelSources) -> ctypes.CDLL:
    """Compiles kernels, once a process."""
    return _compiled(sources.digest, sources.main, tuple(sources.headers.items()), tuple(sources.kernels))


@functools.cache
def _compiled(_digest: str, main: str, headers: tuple[tuple[str, str], ...], kernels: tuple[str, ...]) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory(prefix="cuda-shim-") as made:
        folder = Path(made)
        for name, text in headers:
            (folder / name).write_text(text)
        shutil.copy(HEADER, folder)
        shutil.copy(INSTRUCTIONS, folder / "instructions.cuh")
        table = ", ".join(f'{{"{name}", &shim::Call<{name}>::with}}' for name in kernels)
        source = folder / "shim.cpp"
        source.write_text(f'#include "{HEADER.name}"\n{main}\n{ENTRY.format(kernels=table)}')
        library = folder / "shim.so"
        done = subprocess.run(
            [*compiler(), *FLAGS, "-o", str(library), str(source)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ShimError(done.stderr[-4000:])
        loaded = ctypes.CDLL(str(library))
    loaded.fdlp_shim_launch.restype = ctypes.c_char_p
    loaded.fdlp_shim_launch.argtypes = [ctypes.c_char_p, *[ctypes.c_uint] * 4, ctypes.c_void_p, ctypes.c_int]
    return loaded
