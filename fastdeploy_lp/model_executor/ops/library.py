"""Finds or builds the library of compiled operators and loads it."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fastdeploy_lp.checkpoint.cache import cache_root
from fastdeploy_lp.config.tile_choice import tile_choice
from fastdeploy_lp.model_executor.ops.build import PACKAGED_DIRECTORY, BuildError, compile_library, library_name
from fastdeploy_lp.model_executor.ops.own_files import UntrustedFileError, make_own, require_own
from fastdeploy_lp.model_executor.ops.tiles import TileUnit, choose_tiles, describe_instructions
from fastdeploy_lp.platforms import current_platform

logger = logging.getLogger(__name__)

SWITCH = "FASTDEPLOY_LP_COMPILED_OPS"
# The automatic choice is not worth a line in every log; collect-env reports it.
TILE_LEVELS = {
    TileUnit.AMX: logging.DEBUG,
    TileUnit.NO_PROCESSOR: logging.DEBUG,
    TileUnit.NO_PERMISSION: logging.WARNING,
}


@functools.cache
def compiled_ops() -> ctypes.CDLL | None:
    """Returns the compiled operators, building them if missing; None, logged once, if they are unavailable.

    Platforms without them get None. `FASTDEPLOY_LP_COMPILED_OPS=0` does without them. Raises ValueError for an unknown
    value of `FASTDEPLOY_LP_TILES`.
    """
    choice = tile_choice()
    if not current_platform().runs_compiled_ops:
        return None
    if os.environ.get(SWITCH) == "0":
        logger.info("%s=0: Paddle's own operators compute", SWITCH)
        return None
    try:
        library = ctypes.CDLL(str(_find() or _build()))
    except (BuildError, UntrustedFileError, OSError) as error:
        reason = f"{error}{_packaged_for_others()}"
        logger.warning("no compiled operators, Paddle's own compute, several times slower: %s", reason)
        return None
    unit = choose_tiles(library, choice)
    logger.log(TILE_LEVELS.get(unit, logging.INFO), "products of 8 bits: %s", describe_instructions(library, unit))
    return library


def describe_library() -> str:
    """Which operators a worker would compute with, in a line or two; nothing is compiled."""
    if not current_platform().runs_compiled_ops:
        return f"Paddle's own: the platform {current_platform().name} has no others"
    if os.environ.get(SWITCH) == "0":
        return f"Paddle's own: {SWITCH}=0"
    try:
        found = _find()
    except UntrustedFileError as error:
        return f"Paddle's own: {error}"
    if found is None:
        yet = f"none compiled for this processor yet; a worker would compile {library_name()} at its start"
        return f"{yet}{_packaged_for_others()}"
    try:
        library = ctypes.CDLL(str(found))
    except OSError as error:
        return f"Paddle's own: {found} cannot be loaded: {error}"
    try:
        instructions = describe_instructions(library, choose_tiles(library, tile_choice()))
    except ValueError as error:
        instructions = str(error)
    return f"{found}\nproducts of 8 bits: {instructions}"


def _find() -> Path | None:
    packaged, cached = (directory / library_name() for directory in (PACKAGED_DIRECTORY, _cache_directory()))
    # No ownership check: a user who can write to the package can also change this file.
    if packaged.is_file():
        return packaged
    return require_own(cached) if cached.is_file() else None


def _packaged_for_others() -> str:
    """Returns a remark on libraries of the package that do not fit here, such as a wheel's from another machine."""
    others = ", ".join(sorted(path.name for path in PACKAGED_DIRECTORY.glob("ops-*.so")))
    return f"; {others} of the package is for another processor or other sources" if others else ""


def _build() -> Path:
    directory = make_own(_cache_directory())
    logger.info("compiling the operators for this processor, a minute or two%s", _packaged_for_others())
    began = time.monotonic()
    with _one_at_a_time(directory):
        # Processes that start together, such as ranks, compile once: the others wait.
        path = _find() or require_own(compile_library(directory))
    logger.info("compiled the operators for this processor in %.0f s: %s", time.monotonic() - began, path)
    return path


@contextmanager
def _one_at_a_time(directory: Path) -> Iterator[None]:
    """Runs the block in one process at a time, if the file system has locks; a lock ends with its process."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _cache_directory() -> Path:
    return cache_root() / "ops"
