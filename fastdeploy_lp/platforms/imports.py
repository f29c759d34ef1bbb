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
    """Imports Paddle quietly; call it before any import of a module that imports Paddle.

    Excludes the objects that exist afterwards from all garbage collections of this process.
    """
    # What an import makes stays: looking for garbage meanwhile, and in the imports after it, takes a tenth of the time.
    gc.disable()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            importlib.import_module("paddle")
    finally:
        gc.freeze()
        gc.enable()
