"""Timestamps of bodies."""

from __future__ import annotations

import time


def now() -> int:
    """Returns whole seconds since 1970."""
    return int(time.time())
