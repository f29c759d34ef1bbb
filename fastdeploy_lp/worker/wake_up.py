"""A signal from other threads to a thread that waits in a poll."""

from __future__ import annotations

import os
from contextlib import suppress


class WakeUp:
    """A pipe that is readable from `signal` to `clear`; closed on garbage collection."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)

    def fileno(self) -> int:
        """The descriptor to poll for reading."""
        return self._reader

    def signal(self) -> None:
        """Makes the pipe readable; any thread may call this."""
        # A full pipe is readable already.
        with suppress(BlockingIOError):
            os.write(self._writer, b"\0")

    def clear(self) -> None:
        """Drains the pipe; call it before handling the signalled events."""
        with suppress(BlockingIOError):
            while os.read(self._reader, 4096):
                pass

    def __del__(self) -> None:
        for end in (self._reader, self._writer):
            with suppress(OSError):
                os.close(end)
