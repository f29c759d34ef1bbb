"""Requests that a server recorded, run again by an engine in another process and on a server: the same tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.chat import wait_for_text
from support.command import run_here
from support.server import ServerProcess, wait_until
from support.tiny import write_tiny_checkpoint

SECONDS = 600.0
BIAS = "LogitBiasLogitsProcessor"
KEY = "a-key-of-a-client"
OPTIONS = ["--logits-processors", BIAS, "--max-model-len", "512"]
HELLO = [{"role": "user", "content": "Hello"}]
RECORDED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "Hello", "max_tokens": 8}),
    ("/v1/completions", {"prompt": [[5, 6], [7]], "max_tokens": 5, "n": 3, "temperature": 1.3, "seed": 11}),
    ("/v1/completions", {"prompt": "x", "max_tokens": 40, "stop": ["e", "a"], "stop_token_ids": [9], "top_k": 20}),
    ("/v1/completions", {"prompt": "x", "max_tokens": 6, "bad_words": ["the"], "min_tokens": 2, "top_p": 0.8}),
    ("/v1/completions", {"prompt": "x", "max_tokens": 6, "logit_bias": {"7": 3.5, "9": -100}, "min_p": 0.01}),
    ("/v1/completions", {"prompt": "x", "max_tokens": 9, "guided_regex": "[ab]{3,9}"}),
    ("/v1/completions", {"prompt": "x", "max_tokens": 30, "guided_json": {}, "guided_whitespace": "any"}),
    ("/v1/completions", {"prompt": "x", "max_tokens": 9, "n": 2, "best_of": 3, "repetition_penalty": 1.2}),
    ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 7, "stream": True}),
    ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 30, "response_format": {"type": "json_object"}}),
    (
        "/v1/chat/completions",
        {"messages": HELLO, "max_tokens": 5, "logits_processors": {BIAS: {"logit_bias": {"3": 9}}}},
    ),
]
# One request of two prompts is two records.
RECORDS = len(RECORDED) + 1


@dataclass(frozen=True)
class Recording:
    """A model, and the log of a server that answered RECORDED and an aborted request, with the server's own log.

    The server still runs, and writes its requests to `live`, of which `log` is a copy.
    """

    checkpoint: str
    log: Path
    server_log: str
    metrics: str
    live: Path
    url: str


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recording]:
    checkpoint = str(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), context=512))
    log, live = (tmp_path_factory.mktemp("log") / name for name in ("requests.jsonl", "live.jsonl"))
    headers = {"Authorization": f"Bearer {KEY}"}
    options = [*OPTIONS, "--request-log", str(live), "--api-key", KEY]
    with ServerProcess(*options, model=checkpoint, own_metrics_port=False) as server:
        for path, body in RECORDED:
            answer = httpx.post(f"{server.url}{path}", json=body, headers=headers, timeout=SECONDS)
            assert answer.status_code == 200, answer.text
        body = {"messages": HELLO, "max_tokens": 450, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, headers=headers) as stream:
            wait_for_text(line.removeprefix("data: ") for line in stream.iter_lines() if line)
        wait_until(lambda: len(live.read_bytes().splitlines()) == RECORDS + 2, SECONDS, live.read_text)
        metrics = httpx.get(f"{server.url}/metrics", headers=headers).text
        log.write_bytes(live.read_bytes())
        yield Recording(checkpoint, log, server.log, metrics, live, f"{server.url}/v1")


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_request_is_recorded_and_no_key(recording: Recording) -> None:
    engine, *requests = records(recording.log)
    assert engine["kind"] == "engine"
    assert len(requests) == RECORDS + 1
    assert all(each["params"]["seed"] is not None and each["params"]["max_tokens"] > 0 for each in requests)
    assert requests[-1]["outputs"][0]["finish_reason"] == "abort"
    for text in (recording.log.read_text(), recording.server_log, recording.metrics):
        assert KEY not in text
    assert f"request_log_records_total {RECORDS + 1}" in recording.metrics
    assert "request_log_dropped_total 0" in recording.metrics


def test_the_same_seeds_give_the_same_tokens_after_a_restart(
    recording: Recording, capfd: pytest.CaptureFixture[str]
) -> None:
    """By an engine that the command starts."""
    done = run_here(capfd, "replay", str(recording.log), "--model", recording.checkpoint, *OPTIONS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == f"{RECORDS + 1} the same, 0 different, 0 skipped, 0 damaged lines\n"
    assert done.stderr == ""


def test_a_running_server_gives_them_too_and_differences_are_told(
    recording: Recording, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    engine, *requests = records(recording.log)
    changed = tmp_path / "changed.jsonl"
    requests[0]["outputs"][0]["token_ids"][2] += 1
    requests[1]["outputs"][0]["finish_reason"] = "stop"
    requests[2]["error"] = "it failed"
    lines = [json.dumps(each) for each in (engine, *requests)]
    changed.write_text("\n".join([*lines, "torn", ""]))
    # The server appends the requests of its own log to it while they are replayed.
    same = run_here(capfd, "replay", str(recording.live), "--url", recording.url, "--api-key", KEY)
    different = run_here(capfd, "replay", str(changed), "--url", recording.url, "--api-key", KEY)
    assert len(records(recording.live)) > RECORDS + 2
    assert same.stdout == f"{RECORDS + 1} the same, 0 different, 0 skipped, 0 damaged lines\n"
    assert same.returncode == 0
    assert different.returncode == 1
    *told, summary = different.stdout.splitlines()
    assert summary == f"{RECORDS - 2} the same, 2 different, 1 skipped, 1 damaged lines"
    assert len(told) == 3
    token = requests[0]["outputs"][0]["token_ids"][2]
    assert any(line == f"{requests[0]['request_id']}, output 0: token 2 was {token}, now {token - 1}" for line in told)
    ended = f"{requests[1]['request_id']}, output 0: it ended by stop None, now by "
    assert any(line.startswith(ended) for line in told)
    assert any("is no record of a request log" in line for line in told)


def test_another_engine_is_told(recording: Recording, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    engine, *requests = records(recording.log)
    one = tmp_path / "one.jsonl"
    one.write_text("".join(f"{json.dumps(each)}\n" for each in (engine, requests[0])))
    done = run_here(capfd, "replay", str(one), "--model", recording.checkpoint, *OPTIONS[:2], "--max-model-len", "256")
    assert done.stderr == "recorded by another engine: max_model_len: 512, now 256\n"
    assert done.returncode == 0


def test_what_cannot_be_used_is_told(recording: Recording, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    missing = run_here(capfd, "replay", str(tmp_path / "gone"), "--url", "http://127.0.0.1:1/v1")
    nothing = run_here(capfd, "replay", str(empty), "--url", recording.url, "--api-key", KEY)
    nobody = run_here(capfd, "replay", str(recording.log), "--url", "http://127.0.0.1:1/v1")
    assert (missing.returncode, nothing.returncode, nobody.returncode) == (2, 2, 2)
    assert "no such file" in missing.stderr
    assert "no request that could be compared" in nothing.stderr
    assert "url: no server listens at http://127.0.0.1:1/v1 (Connection refused)" in nobody.stderr
