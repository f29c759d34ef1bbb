"""The environment that whoever started this process gave it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

THREADS = "OMP_NUM_THREADS"


def callers_environment() -> dict[str, str]:
    """Environment variables, as they are now, without what importing Paddle has left among them.

    Where the caller says nothing of threads, Paddle's import sets OMP_NUM_THREADS to 1 for its own process. A worker
    started by a program that has imported Paddle would take that for the caller's wish.
    """
    environment = dict(os.environ)
    if "paddle" in sys.modules and environment.get(THREADS) == "1" and not _was_given(THREADS):
        del environment[THREADS]
    return environment


def _was_given(name: str) -> bool:
    """Whether the process was started with this variable; where the kernel does not tell, it was."""
    try:
        given = Path("/proc/self/environ").read_bytes()
    except OSError:
        return True
    return any(each.startswith(f"{name}=".encode()) for each in given.split(b"\0"))
