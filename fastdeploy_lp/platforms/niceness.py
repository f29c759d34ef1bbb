"""Niceness of single threads, so that threads which serve all requests run first."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress


def set_niceness(thread: threading.Thread, niceness: int) -> None:
    """Sets the niceness of a thread that has started; that of the process is the least.

    Does nothing on a system that has it for processes only.
    """
    if sys.platform == "linux" and thread.native_id is not None:
        own = os.getpriority(os.PRIO_PROCESS, os.getpid())
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread.native_id, max(niceness, own))
