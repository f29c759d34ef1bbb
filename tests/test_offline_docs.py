"""docs/offline.md is run as it is printed, and docs/command-line.md is held against the command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.printed_program import printed_by
from support.server import DEFAULT_MODEL, REPOSITORY

from fastdeploy_lp.entrypoints.batch.files import BEGINNING, read_line
from fastdeploy_lp.entrypoints.chat.session import HELP
from fastdeploy_lp.entrypoints.cli.chat import ChatArgs
from fastdeploy_lp.entrypoints.cli.command import SUBCOMMANDS
from fastdeploy_lp.entrypoints.cli.detect_watermark import WatermarkArgs
from fastdeploy_lp.entrypoints.cli.explain import ExplainArgs
from fastdeploy_lp.entrypoints.cli.replay import ReplayArgs
from fastdeploy_lp.entrypoints.cli.run_batch import BatchArgs
from fastdeploy_lp.request.outputs import RequestOutput
from fastdeploy_lp.startup.engine_args import EngineArgs

OFFLINE, COMMAND_LINE = ((REPOSITORY / "docs" / f"{name}.md").read_text() for name in ("offline", "command-line"))


def code_blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", document, re.DOTALL | re.MULTILINE)


def test_the_program_runs(tmp_path: Path, light_checkpoint: Path) -> None:
    """On a model whose answers are without sense: what the page says of them holds for any."""
    blocks = code_blocks(OFFLINE, "python")
    assert len(blocks) == OFFLINE.count("```") // 2 == 5
    program = "\n".join(blocks).replace(DEFAULT_MODEL, str(light_checkpoint))
    lines = printed_by(program, tmp_path).splitlines()
    assert len({line.partition("]")[2] for line in lines[:4]}) == 1
    assert [line[0] for line in lines[:4]] == ["0", "1", "2", "3"]
    assert any(line.startswith(" Paris Paris Paris Paris") for line in lines)
    assert any(line.startswith("max_tokens: 1000000 is too many") for line in lines)
    assert "abort" in lines


def test_every_field_of_an_output_is_told() -> None:
    table = OFFLINE.partition("| `RequestOutput` |")[2].partition("\n\n")[0]
    first = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert set(re.findall(r"`(\w+)`", " ".join(first))) == {*RequestOutput.__dataclass_fields__, "outputs"}


def test_every_option_and_command_that_is_told_exists() -> None:
    parsed = (EngineArgs, ChatArgs, BatchArgs, ExplainArgs, ReplayArgs, WatermarkArgs)
    fields = {name for args in parsed for name in args.__dataclass_fields__}
    options = {name.replace("-", "_") for name in re.findall(r"--([a-z][a-z-]+)", COMMAND_LINE)}
    assert options - {"help", "base_url", "config", "markdown", "request_log"} <= fields
    named = set(re.findall(r"fastdeploy-lp ([a-z][a-z-]+)", COMMAND_LINE))
    assert named <= {each.name for each in SUBCOMMANDS}
    for each in SUBCOMMANDS:
        assert f"`{each.name}`" in COMMAND_LINE or f"fastdeploy-lp {each.name}" in COMMAND_LINE
    assert set(re.findall(r"^(/\w+)", HELP, re.MULTILINE)) == set(re.findall(r"`(/[a-z_]+)[` ]", COMMAND_LINE))


@pytest.mark.parametrize("line", code_blocks(COMMAND_LINE, "json"))
def test_the_printed_request_is_one(line: str) -> None:
    request = read_line(line.encode(), 1)
    assert json.loads(line)["body"] == request.body
    assert BEGINNING.startswith(b'{"id": ')
