"""Tables of arguments against the schemas that they are made from."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from fastdeploy_lp.engine.client.processor_states import ProcessorInfo
from fastdeploy_lp.entrypoints.cli.processors import main, parameter_section
from fastdeploy_lp.logits_processor import BUILTIN, load_processors
from fastdeploy_lp.stats import ProcessorStats


class Inner(BaseModel):
    """A part."""

    depth: int


class Everything(BaseModel):
    """Says what each is for."""

    count: Annotated[int, Field(ge=1, lt=5)]
    share: Annotated[float, Field(gt=0)] | None = None
    word: Annotated[str, Field(max_length=3)] = "a|b"
    mode: Literal["x", "y"] = "x"
    flag: bool = False
    either: str | list[int] | None = None
    nested: Annotated[list[list[int]], Field(min_length=1)] = []
    pair: tuple[int, Annotated[float, Field(le=2)]] | None = None
    weights: Annotated[dict[str, Annotated[float, Field(ge=0.5)]], Field(max_length=9)] | None = None
    part: Inner | None = None


def described(parameters: dict[str, object] | None) -> ProcessorInfo:
    return ProcessorInfo("Mine", "native", "module", "a:Mine", 0, None, parameters, "It does.", ProcessorStats("Mine"))


def rows_of(section: str) -> dict[str, tuple[str, str]]:
    """What each argument takes, and its default."""
    cells = [line.replace("\\|", "/").strip("| ").split(" | ") for line in section.splitlines() if line[:3] == "| `"]
    return {name.strip("`"): (takes, default) for name, takes, default in cells}


def test_types_bounds_and_defaults_are_told_in_words() -> None:
    section = parameter_section(described(Everything.model_json_schema()))
    assert section.startswith("## Mine\n\nIt does.\n\nSays what each is for.\n\n| argument |")
    assert rows_of(section) == {
        "count": ("integer, at least 1 and below 5", "needed"),
        "share": ("number, above 0", "none"),
        "word": ("string, at most 3 characters", '`"a/b"`'),
        "mode": ('`"x"` or `"y"`', '`"x"`'),
        "flag": ("boolean", "`false`"),
        "either": ("string or list of integers", "none"),
        "nested": ("list of (list of integers), 1 or more entries", "`[]`"),
        "pair": ("[integer; number, at most 2]", "none"),
        "weights": ("object of numbers, at least 0.5, at most 9 entries", "none"),
        "part": ("object", "none"),
    }


def test_a_processor_without_a_schema_and_one_without_arguments_say_so() -> None:
    assert parameter_section(described(None)) == "## Mine\n\nIt does.\n\nThe server does not know its arguments.\n"
    empty = {"type": "object", "properties": {}}
    assert parameter_section(described(empty)) == "## Mine\n\nIt does.\n\nIt takes no arguments.\n"


def test_the_command_has_a_row_for_every_argument_of_every_builtin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--markdown"]) == 0
    _, *sections = capsys.readouterr().out.split("## ")
    by_name = {section.partition("\n")[0]: rows_of(section) for section in sections}
    assert list(by_name) == list(BUILTIN)
    for processor in load_processors(list(BUILTIN)):
        assert processor.params_model is not None
        fields = processor.params_model.model_fields
        assert list(by_name[processor.name]) == list(fields)
        needed = [name for name, field in fields.items() if field.is_required()]
        assert [name for name, (_, default) in by_name[processor.name].items() if default == "needed"] == needed
        assert all("anything" not in takes for takes, _ in by_name[processor.name].values())
