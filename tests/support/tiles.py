"""Passes of the compiled operators in tiles, without them, or in emulated ones."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fastdeploy_lp.config.tile_choice import TileChoice, tile_choice
from fastdeploy_lp.model_executor.ops import compiled_ops
from fastdeploy_lp.model_executor.ops.tiles import TileUnit, choose_tiles

UNITS = (TileUnit.EMULATED, TileUnit.AMX)
CHOICES = {TileUnit.EMULATED: TileChoice.EMULATED, TileUnit.AMX: TileChoice.AUTO, TileUnit.SWITCHED_OFF: TileChoice.OFF}


@contextmanager
def passes_on(ops: ctypes.CDLL, unit: TileUnit) -> Iterator[None]:
    """Passes in this block use the unit; skips the test, with the reason, where this machine does not have it."""
    try:
        if (found := choose_tiles(ops, CHOICES[unit])) is not unit:
            pytest.skip(f"tiles: {found}")
        yield
    finally:
        choose_tiles(ops, tile_choice())


def machine_unit() -> TileUnit:
    """What this machine has, whatever the environment chooses."""
    ops = compiled_ops()
    if ops is None:
        pytest.skip("no compiled operators on this machine")
    try:
        return choose_tiles(ops, TileChoice.AUTO)
    finally:
        choose_tiles(ops, tile_choice())
