"""What a process that was killed leaves in shared memory."""

from __future__ import annotations

from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


def remove_of(pid: int, folder: Path = SHARED_MEMORY) -> None:
    """Remove the entries in which Intel's OpenMP, part of Paddle's CPU build, says that a process has loaded it.

    It removes them itself at an orderly exit.
    """
    for entry in folder.glob(f"__KMP_REGISTERED_LIB_{pid}_*"):
        entry.unlink(missing_ok=True)
