"""The time that bodies carry."""

from __future__ import annotations

import time


def now() -> int:
    """Whole seconds since 1970."""
    return int(time.time())
