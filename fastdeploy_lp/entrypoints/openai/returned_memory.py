"""Return of memory to the system after large bodies."""

from __future__ import annotations

import asyncio
import ctypes

# Bytes. The allocator keeps freed memory, which is useful for small bodies but not for many large ones.
WORTH_BYTES = 32 * 1024 * 1024
# Time for the last references to a body to disappear, and for further bodies to be freed.
DELAY_SECONDS = 2.0


class ReturnedMemory:
    """Returns memory to the system DELAY_SECONDS after `WORTH_BYTES` of bodies were freed; for one event loop."""

    def __init__(self) -> None:
        self._freed = 0
        self._planned = False

    def freed(self, size: int) -> None:
        """Counts `size` bytes that are about to be freed."""
        self._freed += size
        if self._freed >= WORTH_BYTES and not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_later(DELAY_SECONDS, self._return)

    def _return(self) -> None:
        self._freed = 0
        self._planned = False
        # In a thread: malloc_trim walks the whole heap, and does not need the interpreter's lock.
        asyncio.get_running_loop().run_in_executor(None, return_memory)


def return_memory() -> None:
    """Returns the heap's free pages to the system, if the C library has `malloc_trim`."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
