"""The folder of a worker's unix socket."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "fastdeploy_lp-w-"
# Short: the path of a unix socket is limited to 107 bytes, and the temporary folder may use most of them.
SOCKET_NAME = "ipc"


class SocketFolder:
    """A private folder that exists until the worker has connected, since the connection outlives the socket's name.

    The folder is locked while its process lives. The next server removes unlocked folders, left by processes that were
    killed before their worker had connected.
    """

    def __init__(self) -> None:
        _remove_abandoned(Path(tempfile.gettempdir()))
        self._path, self._lock = _locked_folder()

    @property
    def socket(self) -> Path:
        """The path of the socket."""
        return self._path / SOCKET_NAME

    def remove(self) -> None:
        """Removes the folder and the socket's name; repeated calls do nothing."""
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
        except BlockingIOError:  # another server is removing it as abandoned
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
