from __future__ import annotations

import pytest

from fastdeploy_lp.config.tile_choice import TileChoice, tile_choice
from fastdeploy_lp.entrypoints.declare import declare


@pytest.mark.parametrize(
    ("given", "choice"),
    [(None, TileChoice.AUTO), ("", TileChoice.AUTO), ("auto", TileChoice.AUTO), ("off", TileChoice.OFF)],
)
def test_the_choice(given: str | None, choice: TileChoice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FASTDEPLOY_LP_TILES", raising=False)
    if given is not None:
        monkeypatch.setenv("FASTDEPLOY_LP_TILES", given)
    assert tile_choice() is choice


def test_another_value_prevents_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a model is looked for."""
    monkeypatch.setenv("FASTDEPLOY_LP_TILES", "on")
    with pytest.raises(ValueError, match="FASTDEPLOY_LP_TILES: 'on' is none of auto, off, emulated"):
        declare("no-such-model", [], {})
