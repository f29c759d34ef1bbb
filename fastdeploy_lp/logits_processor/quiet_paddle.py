"""Import of Paddle without its advice."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_paddle() -> Iterator[None]:
    """Suppresses Paddle's advice to install a compiler cache while a processor's module imports Paddle."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="No ccache found")
        yield
