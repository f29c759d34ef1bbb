"""Private temporary folders that outlive no server for long, also if it is killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path


class LockedFolder:
    """A private temporary folder that is locked while its process lives.

    A new one first removes unlocked folders of the same prefix, left by processes that were killed.
    """

    def __init__(self, prefix: str) -> None:
        _remove_abandoned(Path(tempfile.gettempdir()), prefix)
        self.path, self._lock = _locked_folder(prefix)

    def remove(self) -> None:
        """Removes the folder and its files; repeated calls do nothing."""
        if self._lock is None:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        self._lock = None


def _locked_folder(prefix: str) -> tuple[Path, int | None]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix))
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another server is removing it as abandoned
            os.close(lock)
        else:
            return path, lock


def _remove_abandoned(parent: Path, prefix: str) -> None:
    for folder in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            _remove_unless_locked(folder)


def _remove_unless_locked(folder: Path) -> None:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(lock).st_uid == os.geteuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
