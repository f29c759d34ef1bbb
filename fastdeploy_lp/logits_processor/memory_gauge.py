"""Memory use of this process."""

from __future__ import annotations

import os
import weakref

STATM = "/proc/self/statm"


class MemoryGauge:
    """Reads the kernel's resident size of this process in about two microseconds; 0 if the kernel has no such file.

    GPU memory is not included.
    """

    def __init__(self) -> None:
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._file: int | None = None
        if os.path.exists(STATM):
            self._file = os.open(STATM, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._file)

    def resident(self) -> int:
        """Returns the resident size in bytes."""
        if self._file is None:
            return 0
        return int(os.pread(self._file, 64, 0).split()[1]) * self._page
