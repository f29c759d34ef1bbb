"""docs/troubleshooting.md quotes messages; each is produced here as its symptom says, and compared."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter
from support.chat import HELLO, opened_stream, post, wait_for_running, wait_for_text
from support.grammars import ambiguous
from support.server import REPOSITORY, ServerProcess, server_command, server_environment
from support.tiny import LONG_CONTEXT, write_tiny_checkpoint

from fastdeploy_lp import EngineArgs
from fastdeploy_lp.engine.client.admission import Admission
from fastdeploy_lp.entrypoints.openai.api_server import main
from fastdeploy_lp.entrypoints.openai.errors import describe
from fastdeploy_lp.entrypoints.openai.streaming.event_stream import StreamWatch
from fastdeploy_lp.logits_processor import load_processors
from fastdeploy_lp.model_executor.ops import library

DOCUMENT = (REPOSITORY / "docs" / "troubleshooting.md").read_text()
SECTIONS = dict(re.findall(r"^### (.*?)\n(.*?)(?=^##|\Z)", DOCUMENT, re.DOTALL | re.MULTILINE))
QUOTED = {
    symptom: [" ".join(block.split()) for block in re.findall(r"^```text\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)]
    for symptom, text in SECTIONS.items()
}
BOOM = "RaisesOnBoom"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with room for answers that a test has to end."""
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), context=LONG_CONTEXT)


@pytest.fixture(scope="module")
def one_slot(checkpoint: Path) -> Iterator[ServerProcess]:
    """One slot, no queue, and a processor whose first fault puts it into quarantine."""
    limits = ["--max-num-seqs", "1", "--max-waiting-requests", "0", "--logits-processors-max-faults", "1"]
    limits += ["--timeout-graceful-shutdown", "1"]
    sizes = ["--max-model-len", str(LONG_CONTEXT)]
    declared = ["--logits-processors", f"support.served_faults:{BOOM}"]
    with ServerProcess(*declared, *limits, *sizes, model=str(checkpoint)) as running:
        yield running


@dataclass
class Bench:
    """What the cases work with."""

    server: ServerProcess
    checkpoint: Path
    folder: Path
    log: pytest.LogCaptureFixture
    patch: pytest.MonkeyPatch
    output: pytest.CaptureFixture[str]


@pytest.fixture
def bench(
    one_slot: ServerProcess,
    checkpoint: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Bench:
    """Everything that a case may need."""
    return Bench(one_slot, checkpoint, tmp_path, caplog, monkeypatch, capsys)


def engine(**options: Any) -> Callable[[Bench], str]:
    """The refusal of options of the tiny model."""

    def refusal(bench: Bench) -> str:
        with pytest.raises(ValueError) as caught:
            EngineArgs(**{"model": str(bench.checkpoint), **options}).create_fd_config()
        return str(caught.value)

    return refusal


def start(*options: str) -> Callable[[Bench], str]:
    """What a start with these options prints last; PORT is a port that is in use."""

    def ended(bench: Bench) -> str:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            given = [str(taken.getsockname()[1]) if each == "PORT" else each for each in options]
            command = server_command("--model", str(bench.checkpoint), *given)
            done = subprocess.run(command, capture_output=True, text=True, env=server_environment(), cwd=bench.folder)
        assert done.returncode == 2
        return done.stderr.splitlines()[-1]

    return ended


def unknown_option(bench: Bench) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["--model", str(bench.checkpoint), "--enable-lora"])
    assert ended.value.code == 2
    return bench.output.readouterr().err.splitlines()[-1]


def answer(status: int, **fields: Any) -> Callable[[Bench], str]:
    """The message of a refused chat, asked again while the server has no time for it."""

    def refused(bench: Bench) -> str:
        body = {"messages": HELLO, "max_tokens": 4, **fields}
        while (response := post(bench.server, body)).status_code == 429 != status:
            continue
        return error_of(response, status)

    return refused


def error_of(response: Any, status: int) -> str:
    assert response.status_code == status, response.text
    message: str = response.json()["error"]["message"]
    return message


def without_compiler(bench: Bench) -> str:
    bench.patch.setattr(library, "PACKAGED_DIRECTORY", bench.folder)
    bench.patch.setenv("FASTDEPLOY_LP_CACHE", str(bench.folder))
    bench.patch.setenv("PATH", str(bench.folder))
    bench.patch.delenv("CXX", raising=False)
    assert library.compiled_ops.__wrapped__() is None
    return bench.log.messages[-1]


def missing_processor(_: Bench) -> str:
    with pytest.raises(ValueError) as caught:
        load_processors(["shout:OnlyTokens"])
    return str(caught.value)


def while_loading(_: Bench) -> str:
    with pytest.raises(RuntimeError) as caught:
        Admission().require_open()
    status, error = describe(caught.value)
    assert (status, error.code) == (503, "engine_starting")
    return error.message


def full(bench: Bench) -> str:
    body = {"messages": HELLO, "max_tokens": LONG_CONTEXT // 2, "ignore_eos": True}
    with opened_stream(bench.server, body) as running:
        wait_for_text(running)
        message = answer(429)(bench)
    wait_for_running(bench.server, 0)
    return message


def fault(bench: Bench) -> str:
    reset(bench)
    return answer(500, logits_processors_args={"boom": 1})(bench)


def quarantine(bench: Bench) -> str:
    fault(bench)
    message = answer(503, logits_processors_args={"boom": 1})(bench)
    reset(bench)
    return message


def reset(bench: Bench) -> None:
    import httpx

    (command,) = re.findall(r'curl -X POST "\$SERVER(\S+)"', SECTIONS["A processor is in quarantine"])
    httpx.post(f"{bench.server.url}{command.replace('NAME', BOOM)}").raise_for_status()


@dataclass(eq=False)
class Unread:
    """A stream that nobody has read for 61 seconds."""

    blocked_since: float = 39.0
    unread_tokens: int = 12
    name: str = "chatcmpl-1"

    def drop(self) -> None: ...


def unread(bench: Bench) -> str:
    async def look() -> None:
        watch = StreamWatch(60.0, 4096, Counter("ended", "", registry=CollectorRegistry()), lambda: 100.0)
        stream = Unread()
        watch.add(stream)
        watch.look()
        watch.remove(stream)

    asyncio.run(look())
    return bench.log.messages[-1]


def interrupt(bench: Bench) -> str:
    """The last of the cases: it ends the server."""
    body = {"messages": HELLO, "max_tokens": LONG_CONTEXT // 2, "ignore_eos": True}
    with opened_stream(bench.server, body) as running:
        wait_for_text(running)
        assert bench.server.stop(signal.SIGINT) == 130
    return bench.server.log


CASES: dict[str, list[Callable[[Bench], str]]] = {
    "Out of memory": [engine(gpu_memory_utilization=1e-9), engine(num_gpu_blocks_override=10**9)],
    "No C++ compiler": [without_compiler],
    "The port is in use": [start("--port", "PORT")],
    "The model is not found": [engine(model="organization/name")],
    "A logits processor is not found": [missing_processor],
    "An option is unknown": [unknown_option],
    "Status 400: a field is unknown": [answer(400, tempereture=1)],
    "Status 400: an argument of a processor is unknown": [answer(400, logits_processors_args={"bom": 1})],
    "Status 400: the context is too short": [answer(400, max_tokens=10**6)],
    "Status 404: the model does not exist": [answer(404, model="gpt-4o")],
    "Status 429: the server is busy": [full],
    "Status 503": [while_loading],
    "A processor fails": [fault],
    "A processor is in quarantine": [quarantine],
    "The mask takes too long": [answer(400, guided_grammar=ambiguous())],
    "No token is left": [answer(400, allowed_token_ids=[40], bad_words_token_ids=[[40]])],
    "Tool calls are refused": [
        answer(400, tools=[{"type": "function", "function": {"name": "f"}}]),
    ],
    "A stream ends early": [unread],
    "Ctrl-C": [interrupt],
}


@pytest.mark.parametrize(("symptom", "number"), [(name, i) for name, cases in CASES.items() for i in range(len(cases))])
def test_a_quoted_message_is_the_real_one(symptom: str, number: int, bench: Bench) -> None:
    bench.log.set_level(logging.INFO)
    produced = CASES[symptom][number](bench)
    pattern = ".*".join(map(re.escape, QUOTED[symptom][number].split("…")))
    assert re.search(pattern, produced, re.DOTALL), produced


def test_every_quoted_message_has_a_case() -> None:
    assert {symptom: len(quoted) for symptom, quoted in QUOTED.items() if quoted} == {
        symptom: len(cases) for symptom, cases in CASES.items()
    }
    assert DOCUMENT.count("```text") == sum(map(len, CASES.values()))
