"""Silence about what Paddle has to say while it is imported."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_paddle() -> Iterator[None]:
    """Where a processor's module brings Paddle in, Paddle's advice to install a compiler cache helps nobody."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="No ccache found")
        yield
