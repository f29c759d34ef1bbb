"""Options given by a program, whose types no command line has settled."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from fastdeploy_lp import LLM
from fastdeploy_lp.config.option_values import without_none
from fastdeploy_lp.startup.engine_args import EngineArgs

# For each kind of option, what is near to it and is none.
WRONG: dict[str, tuple[Any, ...]] = {
    "bool": ("false", 0, 1.0, None, []),
    "int": ("8", 1.5, True, math.nan, [8], -1),
    "float": ("1", True, math.nan, math.inf, [1.0], -1.0),
    "str": (5, True, ["x"], b"x"),
    "list": ("x", 5, [5], {"x": 1}),
}


def wrong_values() -> list[tuple[str, Any]]:
    kinds = {field.name: str(field.type).partition(" |")[0].partition("[")[0] for field in fields(EngineArgs)}
    return [(name, value) for name, kind in kinds.items() for value in WRONG[kind]]


@pytest.mark.parametrize(("name", "value"), wrong_values())
def test_a_value_of_another_kind_is_an_error_that_begins_with_the_option(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name}[:.]"):
        EngineArgs(**{"model": "m", name: value})


def test_a_program_is_told_of_the_option_too() -> None:
    with pytest.raises(ValueError, match=r"^step_timeout: '5' is not allowed; it must be 0 or more seconds$"):
        LLM("smollm2-135m", step_timeout="5")


def test_numbers_at_their_bounds_are_allowed() -> None:
    EngineArgs(
        "m", max_num_seqs=1, max_trace_tokens=0, step_timeout=0, gpu_memory_utilization=1, cache_queue_port=65535
    )


def test_paths_are_taken_where_files_are_named() -> None:
    args = EngineArgs(Path("folder") / "model", chat_template=Path("chat.jinja"))  # type: ignore[arg-type]
    assert (args.model, args.chat_template) == ("folder/model", "chat.jinja")


@pytest.mark.parametrize(("hint", "expected"), [(int | None, int), (int, int), (list[str], list[str])])
def test_without_none(hint: Any, expected: Any) -> None:
    assert without_none(hint) == expected
