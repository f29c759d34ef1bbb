"""`fastdeploy-lp check`: its report, its status, and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from support.server import server_environment
from support.tiny_checkpoint import write_tiny_checkpoint

from fastdeploy_lp.entrypoints.cli.command import main
from fastdeploy_lp.logits_processor.testing import CHECK_NAMES

ARGS = "--logits-processors-args"
# The second is the option's former name.
PARAMS = [ARGS, '{"token_id": 3, "boost": 2.5}', "--params", '[{"token_id": 9, "boost": 4}]']
FAST = ["--skip", "speed"]


def run(*arguments: str) -> int:
    """The status with which the command ends."""
    try:
        main(["check", *arguments])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_a_right_one_gives_0_and_a_wrong_one_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("support.wrong:Boosts", *PARAMS, *FAST) == 0
    passed = rf"\n{len(CHECK_NAMES) - 1} passed, 0 failed, 0 with advice, 1 skipped; [1-9]\d+ steps ran\n$"
    assert re.search(passed, capsys.readouterr().out)
    assert run("support.wrong:WaitsForTheDevice", *PARAMS, *FAST) == 1
    shown = capsys.readouterr().out
    assert "  FAIL     host-sync" in shown
    assert "  skipped  " not in shown
    assert run("support.wrong:WaitsForTheDevice", *PARAMS, *FAST, "--skip", "host-sync") == 0


def test_advice_gives_1_only_if_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("support.wrong:ReturnsACopy", *PARAMS, *FAST) == 0
    assert "  advice   in-place" in capsys.readouterr().out
    assert run("support.wrong:ReturnsACopy", *PARAMS, *FAST, "--strict") == 1


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("support.wrong:Boosts", *PARAMS, *FAST, "--json", "--seed", "3") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["name"], report["dialect"], report["passed"]) == ("Boosts", "native", True)
    assert report["arguments"] == [{"token_id": 3, "boost": 2.5}, {"token_id": 9, "boost": 4}]
    assert report["times"] == []


def test_what_is_no_processor_gives_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("nowhere:Thing") == 1
    assert "FAIL     contract" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([ARGS, "{"], "{ is no JSON"),
        ([ARGS, "[1]"], "[1] must be a JSON object of arguments, or a list of objects"),
        ([ARGS, '{"token_id": "no", "boost": 1}'], "error: logits_processors.Boosts.token_id: "),
        (["--skip", "sync"], "error: skip: 'sync' is no check; checks are contract, "),
        (["--model", "nowhere"], "error: "),
    ],
)
def test_wrong_options_give_2(capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    assert run("support.wrong:Boosts", *options) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""


def test_it_takes_a_real_models_configuration(
    capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = write_tiny_checkpoint(tmp_path_factory.mktemp("model"))
    assert run("LogitBiasLogitsProcessor", "--model", model, "--json", *FAST) == 0
    drawn = json.loads(capsys.readouterr().out)["arguments"]
    assert max(int(token) for args in drawn for token in args["logit_bias"] or {}) < 512


def test_a_class_for_vllm_is_advised_of_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("support.torch_boost:TorchBoost", *PARAMS[:2], *FAST) == 1
    assert "add --vllm-compat" in capsys.readouterr().out


def test_a_process_of_its_own_shows_nothing_else() -> None:
    """Paddle's advice and warnings are kept away; classes for vLLM load with --vllm-compat."""
    command = ["check", "support.torch_boost:TorchBoost", *PARAMS[:2], *FAST, "--vllm-compat"]
    done = subprocess.run(
        [sys.executable, "-c", f"from fastdeploy_lp.entrypoints.cli import main; main({command!r})"],
        capture_output=True,
        text=True,
        env=server_environment(),
        timeout=600,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "TorchBoost (torch, support.torch_boost:TorchBoost)" in done.stdout
