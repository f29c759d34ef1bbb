"""What an operator can get wrong is told in one line, before the model loads, and ends the process with status 2."""

from __future__ import annotations

import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.server import free_port, server_command, server_environment

from fastdeploy_lp.entrypoints.openai.api_server import main

SECONDS = 600.0
BUILTIN = "fastdeploy_lp.logits_processor.builtin.logit_bias"

# Options besides the port, and what the one line has to say; braces hold what the fixture `places` made. More of what
# an option parser refuses is in test_options.py.
CASES: dict[str, tuple[list[str], list[str]]] = {
    "no builtin": (
        ["--logits-processors", "LogitBias"],
        ["'LogitBias'", "; did you mean LogitBiasLogitsProcessor?; names are "],
    ),
    "no colon": (["--logits-processors", "support.processors.Doubles"], ["write support.processors:Doubles"]),
    "no module": (["--logits-processors", "no_such_module:Doubles"], ["'no_such_module'", "PYTHONPATH"]),
    "no attribute": (
        ["--logits-processors", f"{BUILTIN}:LogitBais"],
        ["'LogitBais'", "it has LogitBiasLogitsProcessor"],
    ),
    "no processor": (
        ["--logits-processors", "support.processors:NoLogitsProcessor"],
        ["must be a subclass of LogitsProcessor", "fastdeploy_lp.openai.logits_processor.LogitsProcessor"],
    ),
    "no class": (
        ["--logits-processors", "fastdeploy_lp.logits_processor:BUILTIN"],
        ["is a dict without 'logits_processor_class'"],
    ),
    "no model": (["--model", "{folder}/nowhere"], ["nowhere", "smollm2-135m"]),
    "no checkpoint": (["--model", "{folder}"], ["{folder}"]),
    "no GGUF file": (["--model", "{folder}/text.gguf"], ["text.gguf"]),
    "port in use": (["--port", "{used_port}"], ["port", "{used_port}", "in use"]),
    "metrics port in use": (["--metrics-port", "{used_port}"], ["metrics_port", "{used_port}", "in use"]),
    "queue port in use": (
        ["--engine-worker-queue-port", "{used_port}"],
        ["engine_worker_queue_port", "{used_port}", "in use"],
    ),
    "cache port in use": (
        # A worker finds it out.
        ["--model", "{tiny}", "--cache-queue-port", "{used_port}"],
        ["cache_queue_port", "{used_port}", "in use"],
    ),
    "too few blocks": (["--num-gpu-blocks-override", "128"], ["num_gpu_blocks_override: 128", "needs 129 blocks"]),
    "no memory": (["--gpu-memory-utilization", "0.0001"], ["gpu_memory_utilization", "max_model_len = 2048"]),
    "no such host": (["--host", "no.such.host.invalid"], ["no.such.host.invalid"]),
    "unknown option": (["--no-such-option", "5"], ["error: unknown option --no-such-option"]),
    "misspelled option": (["--max-num-sequences", "5"], ["--max-num-sequences; did you mean --max-num-seqs?"]),
    "context too long": (["--max-model-len", "1000000"], ["max_model_len: 1000000", "8192"]),
    "unknown config key": (["--config", "{folder}/key.yaml"], ["max-num-sequences", "did you mean max-num-seqs?"]),
    "unknown tool parser": (["--tool-call-parser", "mistral"], ["tool_call_parser: 'mistral'", "hermes"]),
    "unknown reasoning parser": (["--reasoning-parser", "o1"], ["reasoning_parser: 'o1'", "deepseek_r1, qwen3"]),
    "no chat template": (["--chat-template", "{folder}/none.jinja"], ["chat_template: cannot read", "none.jinja"]),
    "broken chat template": (["--chat-template", "{folder}/broken.jinja"], ["chat_template: the template does not"]),
    "config type": (["--config", "{folder}/type.yaml"], ["max-num-seqs", "'eight'"]),
}
# The others are told by the same function in this process, which takes no second to start.
THROUGH_THE_COMMAND = ("port in use",)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Iterator[dict[str, str]]:
    """A folder with bad files, and a port that is in use."""
    folder = tmp_path_factory.mktemp("startup")
    (folder / "text.gguf").write_text("no GGUF")
    (folder / "key.yaml").write_text("max-num-sequences: 5\n")
    (folder / "broken.jinja").write_text("{% for %}")
    (folder / "type.yaml").write_text("max-num-seqs: eight\n")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield {"folder": str(folder), "used_port": str(listener.getsockname()[1]), "tiny": str(tiny_checkpoint)}


@dataclass
class Ended:
    """How a server ended, and its folder for temporary files."""

    status: int | str | None
    out: str
    err: str
    temporary: Path


def options_of(name: str, places: dict[str, str]) -> list[str]:
    return [option.format(**places) for option in CASES[name][0]]


def start(options: list[str], temporary: Path) -> subprocess.CompletedProcess[str]:
    """A server that has to end by itself; an option that is given twice counts the second time."""
    command = server_command("--port", str(free_port()), *options)
    environment = {**server_environment(), "TMPDIR": str(temporary)}
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment)


@pytest.fixture(scope="module")
def ended(places: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """How the command ended."""

    def run(name: str) -> Ended:
        temporary = tmp_path_factory.mktemp("t")
        done = start(["--model", "smollm2-135m", *options_of(name, places)], temporary)
        return Ended(done.returncode, done.stdout, done.stderr, temporary)

    return {name: run(name) for name in THROUGH_THE_COMMAND}


def check(name: str, ended: Ended, places: dict[str, str]) -> None:
    """One line tells the mistake, and the model was not loaded."""
    assert ended.status == 2, ended.err
    (line,) = [line for line in ended.err.splitlines() if "error:" in line]
    for part in CASES[name][1]:
        assert part.format(**places) in line
    assert "Traceback" not in ended.err
    assert ended.out == ""
    assert "model loaded" not in ended.err
    assert not list(ended.temporary.glob("fastdeploy_lp-*"))


@pytest.mark.parametrize("name", THROUGH_THE_COMMAND)
def test_the_command_tells_a_mistake_in_one_line_before_the_model_loads(
    name: str, ended: dict[str, Ended], places: dict[str, str]
) -> None:
    check(name, ended[name], places)


@pytest.mark.parametrize("name", [name for name in CASES if name not in THROUGH_THE_COMMAND])
def test_a_mistake_is_told_in_one_line_before_the_model_loads(
    name: str,
    places: dict[str, str],
    tmp_path: Path,
    process_as_it_was: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as raised:
        main(["--port", str(free_port()), "--model", "smollm2-135m", *options_of(name, places)])
    said = capsys.readouterr()
    check(name, Ended(raised.value.code, said.out, said.err, tmp_path), places)


def test_model_is_needed(process_as_it_was: None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["--port", str(free_port())])
    assert raised.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --model is needed")
    assert line.endswith(" (see fastdeploy-lp serve --help)")


FAULTY = """
from fastdeploy_lp.openai.logits_processor import LogitsProcessor


class NeedsAFile(LogitsProcessor):
    def __init__(self, fd_config):
        raise FileNotFoundError("words.txt is not here")

    def update_state(self, share_inputs):
        pass

    def apply(self, logits):
        return logits
"""


def test_processor_that_cannot_be_built_is_named(
    tmp_path: Path,
    tiny_checkpoint: Path,
    process_as_it_was: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It is built in the worker, whose log holds the traceback; the one line says who failed and why."""
    (tmp_path / "faulty.py").write_text(FAULTY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as raised:
        main(["--model", str(tiny_checkpoint), "--port", str(free_port()), "--logits-processors", "faulty:NeedsAFile"])
    assert raised.value.code == 2
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error:")]
    assert "words.txt is not here" in line
    assert "NeedsAFile" in line
    assert not list(tmp_path.glob("fastdeploy_lp-*"))


def test_module_that_fails_to_import_says_why(
    tmp_path: Path,
    process_as_it_was: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "broken_words.py").write_text("raise KeyError('WORDS')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit) as raised:
        main(["--port", str(free_port()), "--model", "smollm2-135m", "--logits-processors", "broken_words:Anything"])
    assert raised.value.code == 2
    failed = "importing 'broken_words' failed: KeyError: 'WORDS'"
    assert capsys.readouterr().err.splitlines() == [
        f"error: logits_processors: 'broken_words:Anything' cannot be used: {failed}"
    ]
