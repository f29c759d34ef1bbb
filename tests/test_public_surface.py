"""Every name that users may rely on is still there: imports, options, HTTP fields, metrics."""

from __future__ import annotations

import pytest
from support.public_surface import Surface, recorded, surface

RECORDED = recorded()


@pytest.fixture(scope="module")
def today() -> Surface:
    """Names of this tree."""
    return surface(RECORDED)


@pytest.mark.slow
@pytest.mark.parametrize("kind", RECORDED)
def test_no_promised_name_is_lost(kind: str, today: Surface) -> None:
    for place, names in RECORDED[kind].items():
        assert place in today[kind], f"{kind}: {place or 'the command'} is gone"
        lost = set(names) - set(today[kind][place])
        assert not lost, f"{kind} of {place or 'the command'}"
