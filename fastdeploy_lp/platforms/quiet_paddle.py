"""Imports of Paddle without its start-up messages and advice."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_paddle() -> Iterator[None]:
    """Suppresses Paddle's advice to install a compiler cache while a processor's module imports Paddle."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="No ccache found")
        yield


def import_paddle() -> None:
    """Imports Paddle quietly; call it before any import of a module that imports Paddle."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()), _without_collections():
        warnings.simplefilter("ignore")
        importlib.import_module("paddle")


@contextmanager
def _without_collections() -> Iterator[None]:
    """Keeps the garbage collector off: what an import makes stays, and looking at it takes a tenth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
