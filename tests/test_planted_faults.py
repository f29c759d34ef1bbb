from __future__ import annotations

from support.planted_faults import FAULTS, REPOSITORY, place_of


def test_the_line_of_each_fault_is_in_the_package_once() -> None:
    places = [place_of(fault, REPOSITORY) for fault in FAULTS]
    assert len(set(places)) == len(FAULTS) == 30
