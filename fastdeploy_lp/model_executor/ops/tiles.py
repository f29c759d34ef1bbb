"""Tile registers of the processor, chosen once a process for all products of the compiled operators."""

from __future__ import annotations

import ctypes
from enum import IntEnum

from fastdeploy_lp.config.tile_choice import TILES_VARIABLE, TileChoice


class TileUnit(IntEnum):
    """`Unit` of `csrc/decoder/tile_unit.h`: what computes, or the reason why products do without tiles."""

    AMX = 0
    EMULATED = 1
    SWITCHED_OFF = 2
    NOT_COMPILED = 3
    NO_PROCESSOR = 4
    NO_PERMISSION = 5

    def __str__(self) -> str:
        return _DESCRIPTIONS[self]


_DESCRIPTIONS = {
    TileUnit.AMX: "AMX",
    TileUnit.EMULATED: f"emulated, very slow ({TILES_VARIABLE}=emulated)",
    TileUnit.SWITCHED_OFF: f"none ({TILES_VARIABLE}=off)",
    TileUnit.NOT_COMPILED: "none (the compiler does not know AMX; GCC 11 and clang 12 do)",
    TileUnit.NO_PROCESSOR: "none (the processor or the operating system has no AMX)",
    TileUnit.NO_PERMISSION: "none (the kernel refuses AMX to this process)",
}


def describe_instructions(ops: ctypes.CDLL, unit: TileUnit) -> str:
    """Returns the instruction sets of products of 8 bits."""
    ops.fdlp_vectors.restype = ctypes.c_char_p
    return f"{ops.fdlp_vectors().decode()}; tiles: {unit}"


def choose_tiles(ops: ctypes.CDLL, choice: TileChoice) -> TileUnit:
    """Makes the choice for all later passes of this process; no pass may be running."""
    return TileUnit(ops.fdlp_choose_tiles(int(choice)))
