"""The example packages of an IO processor and a stat logger: installed in a fresh environment and served."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.chat import REQUEST_SECONDS
from support.errors import check_error
from support.forks import Program, run_forks, serve
from support.fresh_venv import FreshVenv
from support.server import ServerProcess, wait_until
from support.tiny_checkpoint import write_tiny_checkpoint

RANKING, STATS = "example_ranking", "example_stats"
TEXTS = ["the lazy dog", "the quick brown fox", "stock prices"]
BIAS = "LogitBiasLogitsProcessor"
LLM_PROGRAM = """
import warnings
from fastdeploy_lp import LLM

warnings.simplefilter("error")
with LLM({!r}, io_processor_plugin="example_ranking") as llm:
    (output,) = llm.encode({{"data": {{"query": "the dog", "texts": ["stock prices", "the dog"]}}}})
    print(output.outputs[0].index, round(output.outputs[0].score, 5))
"""
Ended = dict[str, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def fresh(plugin_venv: FreshVenv) -> FreshVenv:
    """Both packages installed beside the server, by pip."""
    return plugin_venv


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def stats_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stats") / "completions.jsonl"


@pytest.fixture(scope="module")
def serving(fresh: FreshVenv, model: str, stats_file: Path) -> Iterator[ServerProcess]:
    environment = fresh.environment(RANKING, STATS) | {"EXAMPLE_STATS_FILE": str(stats_file)}
    options = ["--io-processor-plugin", RANKING, "--log-stats-interval", "0.1"]
    options += ["--logits-processors", BIAS, "--served-model-name", "tiny"]
    with ServerProcess(*options, model=model, own_metrics_port=False, python=fresh.python, env=environment) as running:
        yield running


def rank(serving: ServerProcess, data: Any, **fields: Any) -> httpx.Response:
    return httpx.post(f"{serving.url}/pooling", json={"data": data, **fields}, timeout=REQUEST_SECONDS)


@pytest.fixture(scope="module")
def ended(fresh: FreshVenv, tmp_path_factory: pytest.TempPathFactory, model: str) -> Ended:
    """A program that uses the processor, and servers that do not start: the logger's file is not named, a name is
    misspelt, and the filter leaves the processor out.
    """

    def server(plugin: str, *options: str) -> Program:
        return serve("--model", model, *options, variables={"FASTDEPLOY_LP_PLUGINS": plugin})

    programs = {
        "program": Program(LLM_PROGRAM.format(model), {"FASTDEPLOY_LP_PLUGINS": RANKING}),
        "no file": server(STATS),
        "misspelt": server(RANKING, "--io-processor-plugin", "ranking"),
        "left out": server("", "--io-processor-plugin", RANKING),
    }
    folder = tmp_path_factory.mktemp("ended")
    done = run_forks(list(programs.values()), folder, fresh.environment(), python=fresh.python)
    return dict(zip(programs, done, strict=True))


def test_texts_are_ranked_by_their_likeness_to_the_query(serving: ServerProcess) -> None:
    places = rank(serving, {"query": TEXTS[1], "texts": TEXTS}).json()["data"]
    assert sorted(place["index"] for place in places) == [0, 1, 2]
    scores = [place["score"] for place in places]
    assert scores == sorted(scores, reverse=True)
    assert places[0]["index"] == 1
    assert places[0]["score"] == pytest.approx(1.0, abs=1e-6)
    by_last = rank(serving, {"query": TEXTS[1], "texts": TEXTS}, pooling="last").json()["data"]
    assert [place["score"] for place in by_last] != scores


def test_data_that_cannot_be_ranked_is_refused(serving: ServerProcess) -> None:
    error = check_error(rank(serving, {"query": "a", "texts": []}), 400)
    assert error["param"] == "data.texts"
    error = check_error(rank(serving, {"query": "a", "texts": ["b"], "k": 2}), 400)
    assert error["param"] == "data.k"


def test_each_completion_has_its_line(serving: ServerProcess, stats_file: Path) -> None:
    body = {"prompt": "the dog", "max_tokens": 5, "n": 2, "ignore_eos": True, "request_id": "counted"}
    args = {"logits_processors_args": {"logit_bias": {"7": 1.0}}}
    answer = httpx.post(f"{serving.url}/v1/completions", json=body | args, timeout=REQUEST_SECONDS)
    assert answer.status_code == 200, answer.text

    def lines() -> list[dict[str, Any]]:
        # The first lines may come after the answer.
        return [json.loads(line) for line in stats_file.read_text().splitlines()] if stats_file.exists() else []

    def mine() -> list[dict[str, Any]]:
        return [line for line in lines() if "counted" in line.get("request_id", "")]

    wait_until(lambda: len(mine()) == 2, 30)
    assert lines()[0] == {"model": "tiny", "ready": True}
    assert sorted(line["index"] for line in mine()) == [0, 1]
    for line in mine():
        assert (line["model"], line["finish_reason"], line["num_generation_tokens"]) == ("tiny", "length", 5)
        assert line["processors"] == [BIAS]
        assert line["e2e_latency"] >= line["time_to_first_token"] > 0
    assert any(line.get("processor_seconds", {}).get(BIAS, 0) > 0 for line in lines())
    assert "fastdeploy_lp.stats: engine load" in serving.log


def test_a_program_uses_the_processor_too(ended: Ended) -> None:
    done = ended["program"]
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "1.0"]


def test_what_keeps_a_server_from_starting_is_told_in_a_line(ended: Ended) -> None:
    lines = {name: done.stderr.splitlines()[-1] for name, done in ended.items() if name != "program"}
    for name in lines:
        assert ended[name].returncode == 2
        assert "Worker" not in ended[name].stderr
    start = f"error: stat-logger plugin {STATS} (fastdeploy-lp-example-stats 0.1.0): cannot be made: "
    assert lines["no file"].startswith(start)
    assert "EXAMPLE_STATS_FILE" in lines["no file"]
    told = f"error: 'ranking' is no IO-processor plugin that may load here; there are: {RANKING}"
    assert lines["misspelt"] == told
    assert "FASTDEPLOY_LP_PLUGINS leaves it out; there are: none" in lines["left out"]
