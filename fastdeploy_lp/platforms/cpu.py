"""The CPU platform: works everywhere; tests run on it."""

from __future__ import annotations

import math
import mmap
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.platforms.base import Platform

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig


THREADS = "OMP_NUM_THREADS"


def callers_environment() -> dict[str, str]:
    """Returns the current environment variables, except variables set by importing Paddle.

    If the caller sets no thread count, Paddle's import sets OMP_NUM_THREADS to 1 for its own process. A worker
    started by a program that has imported Paddle would take that for the caller's setting.
    """
    environment = dict(os.environ)
    if "paddle" in sys.modules and environment.get(THREADS) == "1" and not _was_given(THREADS):
        del environment[THREADS]
    return environment


def _was_given(name: str) -> bool:
    """Returns True if the process was started with this variable, or if the kernel does not report it."""
    try:
        given = Path("/proc/self/environ").read_bytes()
    except OSError:
        return True
    return any(each.startswith(f"{name}=".encode()) for each in given.split(b"\0"))


HUGE_PAGE = 2 << 20
CONTROL_GROUP = Path("/sys/fs/cgroup")

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "FLAGS_paddle_num_threads")

ALLOCATOR = {
    # By default glibc maps every large activation anew and returns it to the kernel when freed, so each step pays
    # a page fault for every 4 KiB it writes: a gather of 4 MB of keys took 1.8 ms, and takes 0.11 ms in kept memory.
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
    # Huge pages if the kernel provides them on request: fewer faults, and matrix products 1.2 times as fast.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


# Idle OpenMP threads spin for about 200 us, which bridges the gap between two operators, and then sleep: by default
# they would spin for milliseconds, on a core that the API process could use.
OPENMP_WAITING = {"GOMP_SPINCOUNT": "5000"}


# References to an array that a comprehension looks at: the list's, the comprehension's and the count's own.
HELD_HERE = 3


class CpuPlatform(Platform):
    """Computes on every core that the process may use, within its control group's CPU limit."""

    name = "cpu"
    runs_compiled_ops = True
    computes_on_host = True
    # Of the process, not of an instance: memory may be in use for longer than the platform that mapped it.
    _mapped: ClassVar[list[NDArray[Any]]] = []

    @property
    def device_name(self) -> str:
        """The processor's model, as the kernel reports it."""
        cpuinfo = Path("/proc/cpuinfo")
        found = re.search(r"^model name\s*:\s*(.*)$", cpuinfo.read_text() if cpuinfo.is_file() else "", re.MULTILINE)
        return found[1] if found else "CPU"

    def worker_environment(self) -> dict[str, str]:
        """Returns thread counts (all three, or Paddle uses one core), allocator and MKL settings; the caller's win."""
        cores = str(_usable_cores(CONTROL_GROUP))
        wanted = (
            dict.fromkeys(THREAD_VARIABLES, cores) | ALLOCATOR | OPENMP_WAITING | _mkl_code_path(Path("/proc/cpuinfo"))
        )
        given = callers_environment()
        return {name: given.get(name, value) for name, value in wanted.items()}

    def rank_environment(self, ranks: int) -> dict[str, str]:
        """Divides the cores among the ranks; the caller's thread counts win."""
        share = str(max(1, _usable_cores(CONTROL_GROUP) // ranks))
        given = callers_environment()
        threads = {name: given.get(name, share) for name in THREAD_VARIABLES}
        return super().rank_environment(ranks) | threads

    def data_parallel_environment(self, rank: int, size: int) -> dict[str, str]:
        """Returns the worker's share of the cores, at least one; thread counts of the caller's environment win."""
        cores = _usable_cores(CONTROL_GROUP)
        share = str(max(cores // size + (rank < cores % size), 1))
        given = callers_environment()
        return {name: given.get(name, share) for name in THREAD_VARIABLES}

    def free_memory(self) -> int:
        """Returns the main memory available without swapping, within the limit of the process's control group."""
        return _available_memory(Path("/proc/meminfo"), CONTROL_GROUP)

    def check_and_update_config(self, fd_config: FDConfig) -> FDConfig:
        """Returns it unchanged; raises ValueError for an attention backend of GPUs."""
        backend = fd_config.device_config.attention_backend
        if backend is not None:
            raise ValueError(f"attention_backend: {backend} is not allowed on a CPU; it is an option for GPUs")
        return fd_config

    def view_of(self, host: NDArray[Any]) -> Tensor:
        """Returns a tensor that shares the array's memory: a write to either is visible in both."""
        import paddle

        return paddle.from_dlpack(host)

    def zeros(self, shape: Sequence[int], dtype: str) -> Tensor:
        """Returns zeros whose pages are allocated on first write, so that unused KV cache costs nothing.

        They are unmapped by a later call, once the tensor is gone.
        """
        import paddle

        # Not by the tensor: Paddle would hold a lock meanwhile, and the unmapping lets other threads run, one of which
        # may wait for the lock without letting this one run again.
        self._mapped[:] = [each for each in self._mapped if sys.getrefcount(each) > HELD_HERE]
        self._mapped.append(mapped_zeros(math.prod(shape), dtype).reshape(shape))
        return paddle.from_dlpack(self._mapped[-1])


def mapped_zeros(count: int, dtype: str) -> NDArray[Any]:
    """Returns zeros [count] whose pages are allocated on first write, in huge pages if the kernel provides them.

    Mapped, because with the allocator settings above even `calloc` would write every byte: 6 s for 3 GB.
    """
    size = count * np.dtype(dtype).itemsize
    # Private: shared mappings, Python's default, get no huge pages.
    memory = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    start = -whole.ctypes.data % HUGE_PAGE
    return whole[start : start + size].view(dtype)


def _usable_cores(cgroup: Path) -> int:
    """Returns the cores that the process may use, limited to the control group's whole cores, at least one.

    With one more thread, the kernel would stop all threads each time the group has used its quota for a period.
    """
    cores = len(os.sched_getaffinity(0))
    limit = cgroup / "cpu.max"
    quota, _, period = limit.read_text().strip().partition(" ") if limit.is_file() else ("max", "", "")
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def _available_memory(meminfo: Path, cgroup: Path) -> int:
    """Returns available memory in bytes; if the kernel does not report it, all of the machine's memory."""
    if meminfo.is_file():
        values = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        available = int(values["MemAvailable"].split()[0]) * 1024
    else:
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = cgroup / "memory.max"
    if not limit.is_file() or limit.read_text().strip() == "max":
        return available
    used = int((cgroup / "memory.current").read_text())
    stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    # Cached file contents count as used, but the kernel reclaims them when memory is needed.
    return min(available, int(limit.read_text()) - used + int(stat["inactive_file"]) + int(stat["active_file"]))


def _mkl_code_path(cpuinfo: Path) -> dict[str, str]:
    """Returns MKL's instruction-set setting for processors not made by Intel.

    The MKL in Paddle's wheel always takes its slowest path on them: 60 GFLOP/s in float32, while its AVX-512 path
    reaches 400 on the same two AMD cores.
    """
    if not cpuinfo.is_file():
        return {}
    text = cpuinfo.read_text()
    flags = set(text.partition("flags")[2].partition("\n")[0].split())
    if "GenuineIntel" in text or "avx2" not in flags:
        return {}
    return {"MKL_DEBUG_CPU_TYPE": "7" if {"avx512f", "avx512bw", "avx512vl"} <= flags else "5"}


def has_avx512() -> bool:
    """Returns True if the processor has AVX-512; False if the kernel does not list its instructions."""
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.is_file() and "avx512f" in cpuinfo.read_text().partition("\nflags")[2].partition("\n")[0].split()
