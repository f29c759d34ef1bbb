"""The benchmark of guided JSON: its schemas, its judgement and a short run."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.grammars import TinyGrammars
from support.server import REPOSITORY, server_environment
from support.tiny import write_tiny_checkpoint

from fastdeploy_lp.guided_decoding.grammar import grammar_of
from fastdeploy_lp.request.guided_decoding import WHITESPACE, GuidedDecodingParams

PROGRAM = REPOSITORY / "benchmarks" / "json_schemas.py"


def load_program() -> Any:
    """Import the program by its path: `benchmarks` is a folder of programs, not a package."""
    spec = importlib.util.spec_from_file_location("benchmarks_json_schemas", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


program = load_program()
TASKS = program.read_tasks(program.DATA)
KEYWORDS = {
    *("type", "enum", "const", "properties", "required", "additionalProperties", "minProperties", "patternProperties"),
    *("items", "prefixItems", "minItems", "maxItems", "minLength", "maxLength", "pattern", "format", "minimum"),
    *("maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "anyOf", "oneOf", "allOf", "$ref", "$defs"),
}


def test_there_are_200_different_sound_schemas_of_all_keywords() -> None:
    assert len(TASKS) == len({json.dumps([task.ask, task.schema]) for task in TASKS}) == 200
    for task in TASKS:
        Draft202012Validator.check_schema(task.schema)
    written = json.dumps([task.schema for task in TASKS])
    assert {name for name in KEYWORDS if f'"{name}":' not in written} == set()


@pytest.fixture(scope="module")
def grammars(tmp_path_factory: pytest.TempPathFactory) -> TinyGrammars:
    return TinyGrammars(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny")))


@pytest.mark.parametrize("whitespace", WHITESPACE)
def test_every_schema_compiles_in_every_mode(grammars: TinyGrammars, whitespace: str) -> None:
    for task in TASKS:
        grammars.compiler.matcher(grammar_of(GuidedDecodingParams(json=task.schema, whitespace=whitespace)).text)


@pytest.mark.parametrize(
    ("text", "finish_reason", "reason"),
    [
        ('{"a": 1}', "stop", ""),
        ('{"a": 1}', "length", "not complete (length)"),
        ('{"a": 1', "stop", "no JSON: "),
        ('{"a": "1"}', "stop", "not valid: '1' is not of type 'integer'"),
        ('{"d": "2023-02-30"}', "stop", "not valid: '2023-02-30' is not a 'date'"),
    ],
)
def test_only_complete_and_valid_outputs_count(text: str, finish_reason: str, reason: str) -> None:
    schema = {"properties": {"a": {"type": "integer"}, "d": {"format": "date"}}}
    found = program.reason_against(schema, text, finish_reason)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


def test_the_table_counts_each_mode_alone() -> None:
    def result(whitespace: str, reason: str) -> Any:
        return program.Result("type", "a thing", whitespace, 10, reason, "{}")

    results = [result("bounded", ""), result("bounded", "no JSON: x"), result("none", "")]
    assert program.share(results, "bounded") == 50.0
    lines = program.report(results, ["bounded", "none"], show=True).splitlines()
    assert [line.split()[:4] for line in lines[1:3]] == [["bounded", "2", "1", "50.0"], ["none", "1", "1", "100.0"]]
    assert "bounded: type: a thing: no JSON: x" in lines


def ran(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), *options]
    return subprocess.run(command, capture_output=True, text=True, env=server_environment())


def test_a_run_on_a_tiny_model(tmp_path: Path) -> None:
    checkpoint = write_tiny_checkpoint(tmp_path)
    found = tmp_path / "found.json"
    done = ran("--smoke", "--model", str(checkpoint), "--schemas", "3", "--max-tokens", "8", "--json", str(found))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(found.read_text())
    assert [row["ask"] for row in rows] == [task.ask for task in TASKS[:3]]
    assert {row["whitespace"] for row in rows} == {"bounded"}
    assert done.stdout.splitlines()[1].split()[:2] == ["bounded", "3"]


@pytest.mark.long
def test_the_default_model_completes_the_schemas() -> None:
    done = ran("--quantization", "w8a16", "--whitespace", "bounded", "--show")
    assert done.returncode == 0, done.stdout + done.stderr
