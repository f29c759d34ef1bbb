"""Import of Paddle without its start-up messages, which are irrelevant to readers of the log."""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings


def import_paddle() -> None:
    """Imports Paddle quietly; call it before any import of a module that imports Paddle."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        importlib.import_module("paddle")
