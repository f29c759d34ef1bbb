"""Files with machine code that no other user can have written."""

from __future__ import annotations

import os
import stat
from pathlib import Path

ROOT = 0
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UntrustedFileError(RuntimeError):
    """Another user can have written a file, or put it in its place."""


def require_own(path: Path) -> Path:
    """Returns the real path of a file or directory that only this user and root can have written or replaced.

    Raises UntrustedFileError naming the file or directory on the way that another user owns or may write to, OSError
    for what does not exist. Others may write to a directory such as /tmp on the way, whose entries only their owner
    can replace.
    """
    real = path.resolve(strict=True)
    for each in (real, *real.parents):
        status = each.stat(follow_symlinks=False)
        if status.st_uid not in (ROOT, os.geteuid()):
            raise UntrustedFileError(
                f"{each} belongs to the user with the id {status.st_uid}, and {path.name} is machine code; "
                "set FASTDEPLOY_LP_CACHE to a directory of your own"
            )
        keeps_entries = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX and each != real
        if status.st_mode & OTHERS_MAY_WRITE and not keeps_entries:
            raise UntrustedFileError(
                f"other users may write to {each} (mode {stat.S_IMODE(status.st_mode):o}), and {path.name} is machine "
                f"code; run `chmod go-w {each}`, or set FASTDEPLOY_LP_CACHE to a directory of your own"
            )
    return real


def make_own(directory: Path) -> Path:
    """The real path of a directory, made for this user alone where it is missing; raises as `require_own` does."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    return require_own(directory)
