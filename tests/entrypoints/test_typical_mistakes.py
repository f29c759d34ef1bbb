"""The mistakes that operators and clients make first: each gets one line that says what to write instead."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.server import ServerProcess
from support.tiny import write_tiny_checkpoint

from fastdeploy_lp.entrypoints.cli import main

CONTEXT = 160

# A command line, and the beginning of its one line after "error: ".
OPERATORS: dict[str, tuple[str, str]] = {
    "another subcommand": ("server m", "unknown subcommand 'server'; did you mean serve? (see fastdeploy-lp --help)"),
    "no model": (
        "serve",
        "--model is needed: model directory, GGUF file, name in Hugging Face's cache, or smollm2-135m",
    ),
    "misspelled option": ("serve m --prot 1", "unknown option --prot; did you mean --port?"),
    "port in words": ("serve m --port http", "argument --port: invalid int value: 'http'"),
    "port too large": ("serve m --port 81800", "port: 81800 is not a TCP port; allowed are 1 to 65535"),
    "another log level": (
        "serve m --log-level warn",
        "argument --log-level: 'warn' is not allowed; did you mean warning?",
    ),
    "empty list": ("serve m --logits-processors", "argument --logits-processors: expected at least one argument"),
    "no such file": ("serve --config nowhere.yaml", "--config nowhere.yaml: [Errno 2] No such file or directory"),
    "unknown precision": (
        "serve m --quantization int8",
        "argument --quantization: 'int8' is not allowed; allowed: w8a8, w8a16 (see fastdeploy-lp serve --help)",
    ),
    "percents": (
        "serve m --gpu-memory-utilization 90",
        "gpu_memory_utilization: 90.0 is not allowed; it must be above 0 and at most 1",
    ),
    "no certificate": ("serve m --ssl-keyfile key.pem", "ssl_keyfile: needs ssl_certfile"),
    "part of a model's name": (
        "explain Hi --model smollm2",
        "'smollm2': no such model; did you mean smollm2-135m?",
    ),
    "context too long": (
        "explain Hi --model {tiny} --max-model-len 9999",
        "max_model_len: 9999 is more than the model's own 256",
    ),
    "part of a builtin's name": (
        "processors LogitBias",
        "logits_processors: 'LogitBias' is no name known here and has no colon (module.path:ClassName); "
        "did you mean LogitBiasLogitsProcessor?; names are ",
    ),
    "dot for colon": (
        "processors own.Mine",
        "logits_processors: 'own.Mine' is no name known here and has no colon (module.path:ClassName); "
        "for a class of your own write own:Mine; names are ",
    ),
    "no processor": (
        "processors pathlib:Path",
        "logits_processors: 'pathlib:Path' must be a subclass of LogitsProcessor: derive it from ",
    ),
    "no such class": (
        "processors json:Mine",
        "logits_processors: 'json:Mine' is not there: json has no 'Mine'",
    ),
    "no such module": (
        "processors shuot:Mine",
        "logits_processors: 'shuot:Mine' names the module 'shuot', which cannot be found; check the spelling",
    ),
    "twice": (
        "processors MinPLogitsProcessor MinPLogitsProcessor",
        "logits_processors: 'MinPLogitsProcessor' is a second MinPLogitsProcessor; names must be unique, write ",
    ),
    "chat with nobody": (
        "chat",
        "needs a running server (--url http://127.0.0.1:8180/v1) or a model to load (--model smollm2-135m)",
    ),
    "address without http": (
        "chat --url 127.0.0.1:8180",
        "url: '127.0.0.1:8180' is none like http://127.0.0.1:8180/v1",
    ),
    "no server": (
        "chat --url http://127.0.0.1:1/v1",
        "url: no server listens at http://127.0.0.1:1/v1 (Connection refused); "
        "start one in another terminal: fastdeploy-lp serve smollm2-135m --port 1",
    ),
    "no quotes": (
        "check x --logits-processors-args '{a: 1}'",
        "argument --logits-processors-args: {a: 1} is no JSON: ",
    ),
    "no batch": ("run-batch -i gone -o o --model m", "input_file: gone: no such file"),
    "no log": ("replay gone --url http://127.0.0.1:1/v1", "log: gone: no such file"),
    "blank in a name": ("new-processor 'my processor'", "name: 'my processor' is not allowed; it has small letters, "),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny")))


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operators_mistake_is_one_line(
    name: str, tiny: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, beginning = OPERATORS[name]
    with pytest.raises(SystemExit) as ended:
        main([tiny if word == "{tiny}" else word for word in shlex.split(arguments)])
    assert ended.value.code == 2
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert line.startswith(f"error: {beginning}")
    assert shown.out == ""


@dataclass(frozen=True)
class Sent:
    """A request that is refused: fields of a chat's body, or a whole body or another route instead."""

    message: str
    param: str | None
    fields: dict[str, Any] = field(default_factory=dict)
    status: int = 400
    content: bytes | None = None
    path: str = "/v1/chat/completions"
    content_type: str = "application/json"


CLIENTS: dict[str, Sent] = {
    "another model": Sent(
        "the model 'gpt-4' does not exist; this server has 'smol'", "model", {"model": "gpt-4"}, status=404
    ),
    "no version in the path": Sent(
        "this server has no URL /chat/completions", None, path="/chat/completions", status=404
    ),
    "form": Sent(
        "the body is not read as JSON: send the header Content-Type: application/json",
        None,
        content=b"a=b",
        content_type="application/x-www-form-urlencoded",
    ),
    "no JSON": Sent(
        "the body is no valid JSON: Expecting property name enclosed in double quotes", None, content=b"{messages: []}"
    ),
    "no body": Sent("a body is needed: a JSON object", None, content=b""),
    "text for messages": Sent("messages: Input should be a valid list", "messages", {"messages": "Hi"}),
    "no messages": Sent("messages: at least one message is needed", "messages", {"messages": []}),
    "another role": Sent(
        "messages.0.role: Input should be 'system', 'developer', 'user', 'assistant' or 'tool'",
        "messages.0.role",
        {"messages": [{"role": "human", "content": "Hi"}]},
    ),
    "text for a number": Sent("temperature: Input should be a valid number", "temperature", {"temperature": "0.2"}),
    "negative": Sent("temperature: must be from 0 to 100, not -1", "temperature", {"temperature": -1}),
    "misspelled field": Sent(
        "temprature: this field is unknown or not supported yet; did you mean temperature?",
        "temprature",
        {"temprature": 0.2},
    ),
    "more than the context": Sent(
        "max_tokens: 100000 is too many: the context holds 160 tokens, the prompt has 19, which leaves 141",
        "max_tokens",
        {"max_tokens": 100_000},
    ),
    "word for a token": Sent(
        "logit_bias.Paris: must be an integer, the token's id in plain digits such as 42",
        "logit_bias.Paris",
        {"logit_bias": {"Paris": 5}},
    ),
    "another vocabulary": Sent(
        "logit_bias.50000: token id out of range, the vocabulary has 512 tokens",
        "logit_bias.50000",
        {"logit_bias": {"50000": 5}},
    ),
    "misspelled argument": Sent(
        "logits_processors_args.logit_bais: no declared logits processor (LogitBiasLogitsProcessor) takes this "
        "argument; did you mean logit_bias?; known arguments: logit_bias",
        "logits_processors_args.logit_bais",
        {"logits_processors_args": {"logit_bais": {"5": 1}}},
    ),
    "name for arguments": Sent(
        "logits_processors_args: must be a JSON object",
        "logits_processors_args",
        {"logits_processors_args": "logit_bias"},
    ),
    "part of a processor's name": Sent(
        "logits_processors.LogitBias: no logits processor of the name 'LogitBias' is declared; "
        "did you mean LogitBiasLogitsProcessor?; declared are LogitBiasLogitsProcessor",
        "logits_processors.LogitBias",
        {"logits_processors": {"LogitBias": {}}},
    ),
    "options without a stream": Sent(
        "stream_options: only allowed together with stream: true",
        "stream_options",
        {"stream_options": {"include_usage": True}},
    ),
    "number for a flag": Sent("logprobs: Input should be a valid boolean", "logprobs", {"logprobs": 5}),
    "broken schema": Sent(
        "guided_json: is no valid JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        "guided_json",
        {"guided_json": "{"},
    ),
}


@pytest.fixture(scope="module")
def served(tiny: str) -> Iterator[ServerProcess]:
    options = ["--served-model-name", "smol", "--max-model-len", str(CONTEXT)]
    # Installed plugins would be among the declared processors.
    env = {"FASTDEPLOY_LP_PLUGINS": ""}
    with ServerProcess("--logits-processors", "LogitBiasLogitsProcessor", *options, model=tiny, env=env) as running:
        yield running


@pytest.mark.parametrize("name", CLIENTS)
def test_a_clients_mistake_is_named_with_its_field(name: str, served: ServerProcess) -> None:
    sent = CLIENTS[name]
    headers = {"Content-Type": sent.content_type}
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, **sent.fields}
    how: dict[str, Any] = {"json": body} if sent.content is None else {"content": sent.content, "headers": headers}
    answer = httpx.post(f"{served.url}{sent.path}", **how)
    error = answer.json()["error"]
    assert (answer.status_code, error["message"], error["param"]) == (sent.status, sent.message, sent.param)


def test_there_are_at_least_thirty() -> None:
    assert len(OPERATORS) + len(CLIENTS) >= 30
