"""The folder of a worker's unix socket."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "fastdeploy_lp-w-"
# Short, since a path of a unix socket has no more than 107 bytes, most of which may be the temporary folder's.
SOCKET_NAME = "ipc"


class SocketFolder:
    """A private folder that exists until the worker has connected, since the connection outlives the socket's name.

    It is locked while its process lives. So whoever makes the next one knows the folders of processes that were killed
    before their worker had connected, and removes them.
    """

    def __init__(self) -> None:
        _remove_abandoned(Path(tempfile.gettempdir()))
        self._path, self._lock = _locked_folder()

    @property
    def socket(self) -> Path:
        """The path of the socket."""
        return self._path / SOCKET_NAME

    def remove(self) -> None:
        """Remove the folder and the socket's name; calling it again does nothing."""
        if self._lock is None:
            return
        shutil.rmtree(self._path, ignore_errors=True)
        os.close(self._lock)
        self._lock = None


def _locked_folder() -> tuple[Path, int | None]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another server has just taken it for an abandoned one
            os.close(lock)
        else:
            return path, lock


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
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
