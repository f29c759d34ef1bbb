"""The processes that a process has started, and whether one still runs."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

# A process or a thread may end before its file is read, or while it is.
ENDED = (FileNotFoundError, ProcessLookupError)


def process_exists(pid: int) -> bool:
    """Whether a process with this id runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except ENDED:
        return False
    return state != "Z"


def children_of(pid: int | None = None, program: str = "") -> list[int]:
    """Processes that this one, or the one with `pid`, started and that still run; those alone whose command line
    contains `program`, where it is given.
    """
    found: list[int] = []
    for children in Path(f"/proc/{pid or os.getpid()}/task").glob("*/children"):
        with suppress(*ENDED):
            found += [int(child) for child in children.read_text().split()]
    return [child for child in found if process_exists(child) and program in _command_line(child)]


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except ENDED:
        return ""
