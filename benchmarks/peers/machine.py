"""The machine that a comparison ran on."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

# Above this many cores taken by others during a level, results are no measurement of the servers alone.
QUIET_CORES = 0.05


@dataclass(frozen=True)
class Machine:
    """Properties of the machine that affect results."""

    processor: str
    cores: int
    memory_gib: float
    kernel: str
    instructions: tuple[str, ...]

    def __str__(self) -> str:
        extensions = ", ".join(self.instructions) or "no vector extensions that matter here"
        return f"{self.processor}, {self.cores} cores ({extensions}), {self.memory_gib:.0f} GiB, Linux {self.kernel}"


def this_machine() -> Machine:
    """Read from /proc; empty where that is not there."""
    processor, flags = "unknown processor", set[str]()
    for line in _read("/proc/cpuinfo").splitlines():
        name, _, value = (part.strip() for part in line.partition(":"))
        if name == "model name":
            processor = value
        elif name == "flags":
            flags = set(value.split())
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    instructions = tuple(flag for flag in wanted if flag in flags)
    return Machine(processor, os.cpu_count() or 1, pages, platform.release(), instructions)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
