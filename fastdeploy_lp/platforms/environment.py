"""The environment variables that this process was started with."""

from __future__ import annotations

import os
import sys
from pathlib import Path

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
