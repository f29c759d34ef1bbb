"""docs/trace.md: its commands and its program are run, its tables are held against the code."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from typing import Any

import pytest
from pydantic import BaseModel
from support.printed_program import printed_by
from support.server import REPOSITORY, ServerProcess

from fastdeploy_lp.entrypoints.cli import main
from fastdeploy_lp.entrypoints.cli.explain import ExplainArgs
from fastdeploy_lp.entrypoints.openai.protocol.trace import ShadowCounts, TokenTraceBody, TraceEntry, TraceStageBody
from fastdeploy_lp.request.trace import DEFAULT_TRACE_TOP_K, MAX_TRACE_TOP_K, TraceParams
from fastdeploy_lp.stats import ShadowStats

DOCUMENT = (REPOSITORY / "docs" / "trace.md").read_text()
BIAS = "LogitBiasLogitsProcessor"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)


def table(first: str) -> str:
    """The first column of the table with this heading."""
    rows = DOCUMENT.partition(f"| {first} |")[2].partition("\n\n")[0].splitlines()[2:]
    return "\n".join(row.split("|")[1] for row in rows)


def curl(body_of: str, server: ServerProcess) -> Any:
    """What the command that holds this text answers."""
    (command,) = [block for block in blocks("bash") if body_of in block]
    done = subprocess.run(
        ["bash", "-ec", command], capture_output=True, text=True, env={**os.environ, "SERVER": server.url}
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["choices"][0]


def test_the_printed_table_is_what_the_command_shows(capsys: pytest.CaptureFixture[str]) -> None:
    command = next(block for block in blocks("bash") if block.startswith("fastdeploy-lp explain"))
    main(shlex.split(command.replace("\\\n", ""))[1:])
    (printed,) = blocks("text")
    shown = capsys.readouterr().out
    # Other processors than the one that it was printed on may round the last digit otherwise.
    assert re.sub(r"[0-9.]+", "0", shown) == re.sub(r"[0-9.]+", "0", printed)


def test_the_traced_request_is_answered_as_it_is_told(server: ServerProcess) -> None:
    choice = curl('"logits_processors_trace"', server)
    assert choice["message"]["content"].startswith("The capital of France is")
    trace = choice["logits_processors_trace"]
    # This server has a second processor, which declares no arguments.
    names = ["raw", BIAS, "YourLogitsProcessor", "final"]
    assert [[stage["name"] for stage in token["stages"]] for token in trace] == [names] * 6
    flips = [[stage["name"] for stage in token["stages"] if stage["flipped"]] for token in trace]
    assert flips == [[]] * 5 + [[BIAS]]


def test_the_shadowed_request_is_counted_as_it_is_told(server: ServerProcess) -> None:
    choice = curl('"logits_processors_shadow": [', server)
    assert choice["message"]["content"] == "The capital of France is Paris"
    (printed,) = re.findall(r'`(\{"LogitBiasLogitsProcessor": \{"tokens".*?\}\})`', DOCUMENT, re.DOTALL)
    assert choice["logits_processors_shadow"] == json.loads(printed)


def test_the_program_runs() -> None:
    (program,) = blocks("python")
    flips = [line.partition("[")[2].partition("]")[0] for line in printed_by(program).splitlines()]
    assert flips == [""] * 5 + [f"'{BIAS}'"]


@pytest.mark.parametrize(("model", "heading"), [(TokenTraceBody, "of a token |"), (TraceStageBody, "of a stage |")])
def test_every_field_is_told(model: type[BaseModel], heading: str) -> None:
    assert set(re.findall(r"`(\w+)`", table(heading))) == set(model.model_fields)


def test_every_name_is_told() -> None:
    names = [*TraceEntry.model_fields, *ShadowCounts.model_fields, *TraceParams.__struct_fields__]
    assert all(re.search(rf"[`\"]{name}[`\"]", DOCUMENT) for name in names)
    options = {f"--{name.replace('_', '-')}" for name in ExplainArgs.__dataclass_fields__} - {"--prompt"}
    assert set(re.findall(r"--[a-z-]+", table("option of `explain` |"))) == options
    counters = re.search(r"logits_processor_shadow_\{([a-z,]+)\}_total", DOCUMENT)
    assert counters is not None
    assert set(counters[1].split(",")) == {*ShadowStats.__struct_fields__} - {"state", "last_error"}


def test_limits_are_told() -> None:
    assert f"1 to {MAX_TRACE_TOP_K} most likely tokens a stage ({DEFAULT_TRACE_TOP_K})" in DOCUMENT
