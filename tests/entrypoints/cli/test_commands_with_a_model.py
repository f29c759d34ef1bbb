"""`chat` and `run-batch` on a tiny model: with a running server, and with an engine of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.command import run_here
from support.server import ServerProcess
from support.tiny_checkpoint import write_tiny_checkpoint

from fastdeploy_lp.entrypoints.cli import main

SECONDS = 600.0
BIAS = "LogitBiasLogitsProcessor"
TOKEN = "300"
GREEDY = ["--sampling", "temperature=0", "max_tokens=5"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def tiny_server(model: str) -> Iterator[ServerProcess]:
    with ServerProcess("--logits-processors", BIAS, model=model) as running:
        yield running


def ask(server: ServerProcess, path: str, **body: Any) -> Any:
    response = httpx.post(f"{server.url}{path}", json=body, timeout=SECONDS)
    return response.status_code, response.json()


def said(server: ServerProcess, *contents: str, **body: Any) -> str:
    """The answer to a conversation that alternates between user and assistant."""
    messages = [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(contents)]
    status, answer = ask(server, "/v1/chat/completions", messages=messages, temperature=0, max_tokens=5, **body)
    assert status == 200, answer
    text: str = answer["choices"][0]["message"]["content"]
    return text


def check_refused(capsys: pytest.CaptureFixture[str], arguments: list[str], parts: list[str]) -> None:
    """With status 2 and the reason in the last line."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (2, "")
    assert all(part in shown.err.splitlines()[-1] for part in parts), shown.err


# Chats

CHAT = f"""Hello
And then?
/reset
Hello
/use {BIAS} {{"logit_bias": {{"{TOKEN}": 100}}}}
/reset
Hello
/unuse {BIAS}
/logits_processors_args {{"logit_bias": {{"{TOKEN}": 100}}}}
/reset
Hello
/logits_processors_args {{}}
/set temperature 5000
/reset
Hello
/set temperature 0
//Hello
/exit
never said
"""


@pytest.mark.parametrize("place", ["server", "model"])
def test_a_chat_whose_processors_are_switched(
    tiny_server: ServerProcess, model: str, place: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if place == "server":
        done = run_here(capfd, "chat", "--url", f"{tiny_server.url}/v1", *GREEDY, lines=CHAT)
    else:
        done = run_here(capfd, "chat", "--model", model, "--logits-processors", BIAS, *GREEDY, lines=CHAT)
    first = said(tiny_server, "Hello")
    forced = said(tiny_server, "Hello", logit_bias={TOKEN: 100})
    expected = [first, said(tiny_server, "Hello", first, "And then?"), first, forced, forced]
    assert forced != first
    assert done.stdout == "".join(f"{text}\n" for text in [*expected, said(tiny_server, "/Hello")])
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "temperature" in line
    assert done.returncode == 1


@pytest.mark.parametrize("flag", ["use", "args"])
def test_processors_are_switched_on_by_flags(
    tiny_server: ServerProcess, flag: str, capfd: pytest.CaptureFixture[str]
) -> None:
    args = f'{{"logit_bias": {{"{TOKEN}": 100}}}}'
    flags = ["--use", f"{BIAS}={args}"] if flag == "use" else ["--logits-processors-args", args]
    done = run_here(capfd, "chat", "--url", f"{tiny_server.url}/v1", *GREEDY, *flags, lines="Hello\n")
    assert done.stdout == f"{said(tiny_server, 'Hello', logit_bias={TOKEN: 100})}\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_a_system_prompt_survives_a_reset(tiny_server: ServerProcess, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--url", f"{tiny_server.url}/v1", *GREEDY, "--system-prompt", "Be brief"]
    done = run_here(capfd, "chat", *options, lines="Hi\n/reset\nHi\n")
    messages = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}]
    _, answer = ask(tiny_server, "/v1/chat/completions", messages=messages, temperature=0, max_tokens=5)
    assert done.stdout == f"{answer['choices'][0]['message']['content']}\n" * 2


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--url", "nowhere"], ["url: 'nowhere'"]),
        (
            ["--url", "http://127.0.0.1:1/v1"],
            ["url: no server listens at", "fastdeploy-lp serve smollm2-135m --port 1"],
        ),
        (["--url", "http://127.0.0.1:1/v1", "--max-num-seqs", "3"], ["--max-num-seqs"]),
        ([], ["needs a running server (--url http://127.0.0.1:8180/v1) or a model to load (--model smollm2-135m)"]),
        (["--model", "nowhere"], ["'nowhere'"]),
        (["--model", "m", "--use", "X=5"], ["use: X: must be a JSON object"]),
        (["--model", "m", "--use", "X={"], ["use: X: no valid JSON"]),
        (["--model", "m", "--sampling", "n=2"], ["sampling: n: cannot be set"]),
        (["--model", "m", "--logits-processors-args", "[]"], ["logits_processors_args: must be a JSON object"]),
    ],
    ids=str,
)
def test_options_that_cannot_be_used_are_told(
    capsys: pytest.CaptureFixture[str], arguments: list[str], parts: list[str]
) -> None:
    check_refused(capsys, ["chat", *arguments], parts)


# Batches


def batch(path: Path, *requests: tuple[str, str, dict[str, Any]]) -> Path:
    lines = [{"custom_id": name, "method": "POST", "url": url, "body": body} for name, url, body in requests]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def without_ids(body: Any) -> Any:
    """What two answers to one request share."""
    kept = {name: value for name, value in body.items() if name not in ("id", "created")}
    if "usage" in kept:
        kept["usage"] = {**kept["usage"], "prompt_tokens_details": None}
    return kept


def test_a_batch_is_answered_as_the_server_answers(
    tiny_server: ServerProcess, model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hello = [{"role": "user", "content": "Hello"}]
    requests: list[tuple[str, str, dict[str, Any]]] = [
        ("chat", "/v1/chat/completions", {"messages": hello, "temperature": 0, "logprobs": True, "top_logprobs": 2}),
        ("biased", "/v1/chat/completions", {"messages": hello, "seed": 5, "logit_bias": {TOKEN: 100}, "max_tokens": 4}),
        ("texts", "/v1/completions", {"prompt": ["Hi", "é"], "n": 3, "seed": 1, "logprobs": 1}),
        ("many", "/v1/completions", {"prompt": ["Hi"] * 20, "n": 5, "seed": 2, "max_tokens": 2}),
        ("tokens", "/pooling", {"input": "Hi there", "task": "token_embed", "dimensions": 3}),
        ("no data", "/pooling", {"data": {}}),
        ("refused", "/v1/completions", {"prompt": "Hi", "max_tokens": 100_000}),
        ("unknown", "/v1/completions", {"prompt": "Hi", "no_such_field": 1}),
        ("not found", "/v1/completions", {"prompt": "Hi", "model": "nobody"}),
        ("too little", "/v1/chat/completions", {}),
    ]
    source, target = batch(tmp_path / "in.jsonl", *requests), tmp_path / "out.jsonl"
    with source.open("a") as file:
        file.write("nonsense\n")
    arguments = ["run-batch", "-i", str(source), "-o", str(target), "--model", model, "--logits-processors", BIAS]
    done = run_here(capfd, *arguments, "--max-num-seqs", "4", "--max-concurrency", "3")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "5 completed, 6 failed, 0 answered before"
    written = {line["custom_id"]: line for line in map(json.loads, target.read_text().splitlines())}
    assert len(written) == len(requests) + 1
    assert written[None]["error"]["message"].startswith(f"line {len(requests) + 1}: no valid JSON")
    for name, url, body in requests:
        status, answer = ask(tiny_server, url, **body)
        response = written[name]["response"]
        assert response["status_code"] == status
        assert without_ids(response["body"]) == without_ids(answer)
    before = target.read_bytes()
    assert run_here(capfd, *arguments).stderr.splitlines()[-1] == "0 completed, 0 failed, 11 answered before"
    assert target.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["--input-file is needed"]),
        (["-i", "{here}/in.jsonl"], ["--output-file is needed"]),
        (["-i", "{here}/nowhere", "-o", "{here}/out"], ["input_file", "no such file"]),
        (["-i", "{here}/in.jsonl", "-o", "{here}/in.jsonl"], ["output_file", "is the input file"]),
        (["-i", "{here}/in.jsonl", "-o", "{here}/notes"], ["output_file", "line 1 is no batch output"]),
        (["-i", "{here}/in.jsonl", "-o", "{here}/out", "--max-concurrency", "0"], ["max_concurrency"]),
        (["-i", "{here}/in.jsonl", "-o", "{here}/out", "--model", "nowhere"], ["'nowhere'"]),
    ],
    ids=str,
)
def test_batch_options_that_cannot_be_used_are_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], parts: list[str]
) -> None:
    batch(tmp_path / "in.jsonl")
    (tmp_path / "notes").write_text("mine")
    given = [argument.format(here=tmp_path) for argument in arguments]
    check_refused(capsys, ["run-batch", *given, *([] if "--model" in given else ["--model", "m"])], parts)
    assert (tmp_path / "notes").read_text() == "mine"
