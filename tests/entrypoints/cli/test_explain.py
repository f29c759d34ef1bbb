"""`explain` on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.tiny_checkpoint import write_tiny_checkpoint

from fastdeploy_lp.entrypoints.cli import main

BIAS = "LogitBiasLogitsProcessor"
TOKEN = 300
FORCED = {"logit_bias": {str(TOKEN): 1000.0}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


def explain(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    main(["explain", *arguments])
    return capsys.readouterr().out


def test_a_table_tells_of_each_token(capsys: pytest.CaptureFixture[str], model: str) -> None:
    options = ["--model", model, "--max-num-seqs", "1", "--logits-processors-args", json.dumps(FORCED)]
    lines = explain(capsys, "Hello", *options, "--max-tokens", "2", "--logits-processors", BIAS).splitlines()
    assert [line for line in lines if line.startswith("token ")] == [line for line in lines if f"({TOKEN})" in line]
    stages = [line.split()[0] for line in lines if "%" in line]
    assert stages == ["raw", BIAS, "final"] * 2
    assert all("flipped" in line for line in lines if BIAS in line)
    # Nobody watches: no colors, and lines of whatever length.
    assert "\x1b" not in "".join(lines)


def test_json_for_programs(capsys: pytest.CaptureFixture[str], model: str) -> None:
    options = ["--model", model, "--max-num-seqs", "1", "--plain", "--top-k", "3", "--max-tokens", "2", "--json"]
    use = ["--use", f"{BIAS}={json.dumps(FORCED)}", "--shadow", BIAS, "--temperature", "1", "--seed", "5"]
    told = json.loads(explain(capsys, "Hello", *options, *use, "--logits-processors", BIAS))
    assert [len(stage["top"]) for each in told["logits_processors_trace"] for stage in each["stages"]] == [3] * 4
    assert told["logits_processors_shadow"] == {BIAS: {"tokens": 2, "changed": 2, "faults": 0}}
    assert told["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "prompt is needed"),
        (["Hi", "--top-k", "21"], "top_k: must be an integer from 1 to 20, not 21"),
        (["Hi", "--logits-processors-args", "[]"], "logits_processors_args: must be a JSON object"),
        (["Hi", "--args", "[]"], "logits_processors_args: must be a JSON object"),
        (["Hi", "--temperature", "-1"], "temperature: must be from 0 to 100"),
    ],
)
def test_what_cannot_be_used_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], reason: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explain", *arguments, "--model", str(tmp_path)])
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err.splitlines()[-1]


def test_a_refused_request_is_one_line(capsys: pytest.CaptureFixture[str], model: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explain", "Hi", "--model", model, "--max-num-seqs", "1", "--max-trace-tokens", "4"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: logits_processors_trace.max_tokens: 8 tokens")
