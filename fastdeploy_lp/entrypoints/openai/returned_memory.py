"""Memory that goes back to the system after large bodies."""

from __future__ import annotations

import asyncio
import ctypes

# The allocator keeps what was freed, which pays for small bodies and not for many large ones.
WORTH_BYTES = 32 * 1024 * 1024
# For what refers to a body to be gone, and for others that are about to be freed.
DELAY_SECONDS = 2.0


class ReturnedMemory:
    """Returns freed memory some time after `WORTH_BYTES` of bodies were freed; lives on one event loop."""

    def __init__(self) -> None:
        self._freed = 0
        self._planned = False

    def freed(self, size: int) -> None:
        """`size` bytes are about to be freed."""
        self._freed += size
        if self._freed >= WORTH_BYTES and not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_later(DELAY_SECONDS, self._return)

    def _return(self) -> None:
        self._freed = 0
        self._planned = False
        # In a thread: it walks over the whole heap, and needs no lock of the interpreter's.
        asyncio.get_running_loop().run_in_executor(None, return_memory)


def return_memory() -> None:
    """Give the free pages of the heap back, where the C library has a function for it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
