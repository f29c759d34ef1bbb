"""Imports that take little time, and of Paddle without its start-up messages and advice."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports() -> Iterator[None]:
    """Suspends garbage collections while a process that starts imports its modules.

    Excludes the objects that exist afterwards from all collections: what an import makes stays.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def quiet_paddle() -> Iterator[None]:
    """Suppresses Paddle's advice to install a compiler cache while a processor's module imports Paddle."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="No ccache found")
        yield


def import_paddle() -> None:
    """Imports Paddle quietly; call it before any import of a module that imports Paddle."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        importlib.import_module("paddle")
