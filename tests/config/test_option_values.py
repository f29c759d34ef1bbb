from __future__ import annotations

from dataclasses import dataclass

import pytest

from fastdeploy_lp.config.option_values import Given, option, with_options_of


@dataclass
class Kitchen:
    size: int = option(4, help="square metres")


@dataclass
class Garden:
    area: int = option(9, help="square metres", given=Given("size"))


def test_collected_options_are_keywords_after_the_fields_of_the_class() -> None:
    @dataclass
    @with_options_of(Kitchen)
    class House:
        street: str
        number: int = 1

    house = House("Lime", 3, size=5)  # type: ignore[call-arg]
    assert (house.street, house.number, vars(house)["size"]) == ("Lime", 3, 5)
    with pytest.raises(TypeError, match="positional"):
        House("Lime", 3, 5)  # type: ignore[call-arg]


def test_an_option_that_two_parts_declare_is_refused() -> None:
    with pytest.raises(ValueError, match="size: this option is declared twice"):
        with_options_of(Kitchen, Garden)(type("House", (), {"__annotations__": {}}))
