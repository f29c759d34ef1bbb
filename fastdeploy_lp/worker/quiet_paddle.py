"""Imports Paddle without its greeting: advice that does not concern whoever reads our log."""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings


def import_paddle() -> None:
    """To be called before anything that imports Paddle."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        importlib.import_module("paddle")
