"""Log lines: one a event, whatever is in it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_lp.config.log_format import (
    FORMAT_VARIABLE,
    LEVEL_VARIABLE,
    MAX_FIELD_CHARACTERS,
    MAX_FIELD_ITEMS,
    REQUEST_ID,
    JsonFormatter,
    TextFormatter,
)

FIELDS = st.dictionaries(
    st.sampled_from(["path", "status", "processors", "ttft"]),
    st.none() | st.text() | st.integers() | st.floats(allow_nan=False) | st.lists(st.text(), max_size=3),
)


def event(message: str, fields: dict[str, object], error: BaseException | None = None) -> logging.LogRecord:
    trace = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("fastdeploy_lp.test", logging.INFO, __file__, 1, "%s", (message,), trace)
    record.fields = fields
    return record


@given(message=st.text(), fields=FIELDS)
def test_a_text_line_is_one_line_without_control_characters(message: str, fields: dict[str, object]) -> None:
    line = TextFormatter().format(event(message, fields))
    assert len(line.splitlines()) == 1
    assert not [character for character in line if ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0]


@given(message=st.text(), fields=FIELDS)
def test_a_json_line_gives_back_what_was_logged(message: str, fields: dict[str, object]) -> None:
    line = JsonFormatter().format(event(message, fields))
    assert line.isascii()
    assert len(line.splitlines()) == 1
    told = json.loads(line)
    assert told["message"] == message
    assert {name: told[name] for name in fields} == fields


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_fields_are_cut_to_their_bounds(formatter: logging.Formatter) -> None:
    long: dict[str, object] = {"path": "/" + "a" * 60_000, "reasons": ["b" * 60_000] * 2, "items": ["c"] * 60_000}
    line = formatter.format(event("request", long))
    assert len(line) < 10 * (MAX_FIELD_CHARACTERS + MAX_FIELD_ITEMS)
    assert f"{60_001 - MAX_FIELD_CHARACTERS} more" in line
    assert f"{60_000 - MAX_FIELD_ITEMS} more" in line
    whole = {"path": "a" * MAX_FIELD_CHARACTERS, "items": ["c"] * MAX_FIELD_ITEMS, "prompts": ["d" * 60_000]}
    assert "more" not in formatter.format(event("request", whole))


def test_values_that_could_be_taken_for_more_fields_are_quoted() -> None:
    fields: dict[str, object] = {"path": "/a status=200", "empty": "", "none": None, "list": [], "names": ["a", "b c"]}
    line = TextFormatter().format(event("request", fields))
    assert line.endswith('INFO fastdeploy_lp.test: request path="/a status=200" empty="" none=- list=- names=a,"b c"')


@pytest.mark.parametrize("formatter", [TextFormatter("worker"), JsonFormatter("worker")])
def test_a_process_can_stand_in_the_place_of_its_loggers(formatter: logging.Formatter) -> None:
    line = formatter.format(event("ready", {}))
    assert "worker" in line
    assert "fastdeploy_lp.test" not in line


def test_the_request_that_it_happened_in_is_told() -> None:
    token = REQUEST_ID.set("an-id")
    try:
        assert json.loads(JsonFormatter().format(event("oh", {})))["request_id"] == "an-id"
        assert json.loads(JsonFormatter().format(event("oh", {"request_id": "own"})))["request_id"] == "own"
        assert " request_id=an-id" in TextFormatter().format(event("oh", {}))
    finally:
        REQUEST_ID.reset(token)
    assert "request_id" not in json.loads(JsonFormatter().format(event("oh", {})))


def test_tracebacks_are_told() -> None:
    try:
        raise KeyError("lost")
    except KeyError as raised:
        failure = event("failed", {}, raised)
    assert "KeyError: 'lost'" in json.loads(JsonFormatter().format(failure))["traceback"]
    assert TextFormatter().format(failure).splitlines()[-1] == "KeyError: 'lost'"
    assert sys.exc_info() == (None, None, None)


PROGRAM = """
import logging, warnings
from fastdeploy_lp.config.log_format import configure_from_environment
configure_from_environment("worker")
for name in ("fastdeploy_lp.some.module", "library"):
    for level in ("debug", "info", "warning"):
        getattr(logging.getLogger(name), level)(f"{name} {level}")
warnings.warn("careful")
"""


@pytest.mark.parametrize(
    ("level", "told"),
    [
        ("debug", ["fastdeploy_lp.some.module debug", "fastdeploy_lp.some.module info", "library info"]),
        ("info", ["fastdeploy_lp.some.module info", "library info"]),
        ("warning", []),
    ],
)
def test_libraries_are_not_asked_for_their_debug_lines(level: str, told: list[str]) -> None:
    environment = {**os.environ, LEVEL_VARIABLE: level, FORMAT_VARIABLE: "json"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["message"] for line in lines if line["level"] in ("debug", "info")] == told
    warned = [line["message"] for line in lines if line["level"] == "warning"]
    assert warned[:2] == ["fastdeploy_lp.some.module warning", "library warning"]
    assert "careful" in warned[2]
    assert {line["logger"] for line in lines} == {"worker"}
