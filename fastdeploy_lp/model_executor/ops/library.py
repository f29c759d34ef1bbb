"""Finds or builds the library of compiled operators and loads it."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import time
from pathlib import Path

from fastdeploy_lp.checkpoint.cache import cache_root
from fastdeploy_lp.model_executor.ops.build import PACKAGED_DIRECTORY, BuildError, compile_library, library_name
from fastdeploy_lp.model_executor.ops.ownership import UntrustedFileError, make_own, require_own
from fastdeploy_lp.platforms import current_platform

logger = logging.getLogger(__name__)

SWITCH = "FASTDEPLOY_LP_COMPILED_OPS"


@functools.cache
def compiled_ops() -> ctypes.CDLL | None:
    """Returns the compiled operators, building them if missing; None, logged once, if they are unavailable.

    Platforms without them get None. `FASTDEPLOY_LP_COMPILED_OPS=0` does without them.
    """
    if not current_platform().runs_compiled_ops:
        return None
    if os.environ.get(SWITCH) == "0":
        logger.info("%s=0: Paddle's own operators compute", SWITCH)
        return None
    try:
        return ctypes.CDLL(str(_find() or _build()))
    except (BuildError, UntrustedFileError, OSError) as error:
        logger.warning("no compiled operators, Paddle's own compute, several times slower: %s", error)
        return None


def describe_library() -> str:
    """Which operators a worker would compute with; nothing is compiled."""
    if not current_platform().runs_compiled_ops:
        return f"Paddle's own: the platform {current_platform().name} has no others"
    if os.environ.get(SWITCH) == "0":
        return f"Paddle's own: {SWITCH}=0"
    try:
        found = _find()
    except UntrustedFileError as error:
        return f"Paddle's own: {error}"
    if found is None:
        return f"none compiled for this processor yet; a worker would compile {library_name()} at its start"
    try:
        ctypes.CDLL(str(found))
    except OSError as error:
        return f"Paddle's own: {found} cannot be loaded: {error}"
    return str(found)


def _find() -> Path | None:
    packaged, cached = (directory / library_name() for directory in (PACKAGED_DIRECTORY, _cache_directory()))
    # No ownership check: a user who can write to the package can also change this file.
    if packaged.is_file():
        return packaged
    return require_own(cached) if cached.is_file() else None


def _build() -> Path:
    began = time.monotonic()
    path = require_own(compile_library(make_own(_cache_directory())))
    logger.info("compiled the operators for this processor in %.0f s: %s", time.monotonic() - began, path)
    return path


def _cache_directory() -> Path:
    return cache_root() / "ops"
