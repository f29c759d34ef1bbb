"""Entries that OpenMP runtimes leave in shared memory when their process is killed.

LLVM's runtime and Intel's later ones enter each process that loads them, and remove the entry at an orderly exit. The
entry serves the search for a second runtime in the same process while libraries load, and is not read afterwards.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

# A runtime that cannot open shared memory writes to the second one.
FOLDERS = (Path("/dev/shm"), Path("/tmp"))
_PREFIX = "__KMP_REGISTERED_LIB_"


def remove_of(pid: int, folders: Sequence[Path] = FOLDERS) -> None:
    """Remove the entries of a process: of one that has ended, or of this one once its libraries are loaded."""
    for folder in folders:
        for entry in folder.glob(f"{_PREFIX}{pid}_*"):
            _remove(entry)


def remove_of_the_dead(folders: Sequence[Path] = FOLDERS) -> None:
    """Remove the entries of this user's processes that have ended, which were killed all at once."""
    for entry in _of_this_user(folders):
        found = re.fullmatch(rf"{_PREFIX}(\d+)_.*", entry.name)
        if found and not Path(f"/proc/{found[1]}").exists():
            _remove(entry)


def _of_this_user(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        yield from folder.glob(f"{_PREFIX}*_{os.getuid()}")


def _remove(entry: Path) -> None:
    # Another user's, or gone meanwhile.
    with contextlib.suppress(OSError):
        entry.unlink()
