"""`FASTDEPLOY_LP_TILES`: how products of the compiled operators use the tile registers of a processor with AMX."""

from __future__ import annotations

import os
from enum import IntEnum

TILES_VARIABLE = "FASTDEPLOY_LP_TILES"


class TileChoice(IntEnum):
    """`Choice` of `csrc/decoder/tile_unit.h`."""

    AUTO = 0
    OFF = 1
    EMULATED = 2


def tile_choice() -> TileChoice:
    """Returns the choice of the environment; raises ValueError naming the variable."""
    given = os.environ.get(TILES_VARIABLE) or TileChoice.AUTO.name.lower()
    choices = {choice.name.lower(): choice for choice in TileChoice}
    if given not in choices:
        raise ValueError(f"{TILES_VARIABLE}: {given!r} is none of {', '.join(choices)}")
    return choices[given]
