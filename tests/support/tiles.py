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
    """Has passes in this block use the unit, and fails if none computed in tiles, or any did with tiles switched off.

    Skips the test, with the reason, where this machine does not have the unit.
    """
    try:
        if (found := choose_tiles(ops, CHOICES[unit])) is not unit:
            pytest.skip(f"tiles: {found}")
        before = tile_loads(ops)
        yield
        assert (tile_loads(ops) > before) == (unit is not TileUnit.SWITCHED_OFF), f"loads of tiles: {before} before"
    finally:
        choose_tiles(ops, tile_choice())


def tile_loads(ops: ctypes.CDLL) -> int:
    """Configurations of tiles that passes of this process loaded so far."""
    ops.fdlp_tile_loads.restype = ctypes.c_int64
    loads: int = ops.fdlp_tile_loads()
    return loads


def machine_unit() -> TileUnit:
    """What this machine has, whatever the environment chooses."""
    ops = compiled_ops()
    if ops is None:
        pytest.skip("no compiled operators on this machine")
    try:
        return choose_tiles(ops, TileChoice.AUTO)
    finally:
        choose_tiles(ops, tile_choice())
