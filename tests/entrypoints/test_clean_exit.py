"""However a program that uses `LLM` ends, its worker and what the worker left end with it."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.forks import Program, run_forks
from support.processes import process_exists
from support.server import server_environment, wait_until
from support.tiny_checkpoint import write_tiny_checkpoint

SECONDS = 300.0

BEGINNING = """
import os, signal, sys, threading
from fastdeploy_lp import LLM, SamplingParams

ENDLESS = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True, n=8)


def note(llm):
    print(llm.worker_pid, flush=True)
    return llm


def interrupt_when_running(llm):
    def wait():
        while not llm._engine.num_in_flight:
            pass
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, daemon=True).start()

"""

PROGRAMS = {
    "its end, with a stream that is left open": (
        "llm = note(LLM({model!r}))\nllm.generate('Hi', SamplingParams(max_tokens=2), use_tqdm=False)\n"
        "stream = llm.generate('Hi', ENDLESS, stream=True)\nnext(stream)",
        0,
    ),
    "an exception, in the body of one of two engines": (
        "first = note(LLM({model!r}))\nwith note(LLM({model!r})) as llm:\n    raise KeyError('mine')",
        1,
    ),
    "an interrupt of a call": (
        "llm = note(LLM({model!r}))\ninterrupt_when_running(llm)\n"
        "while True:\n    llm.generate(['Hi'] * 50, ENDLESS, use_tqdm=False)",
        -signal.SIGINT,
    ),
    "an interrupt of a stream in a body": (
        "with note(LLM({model!r})) as llm:\n    interrupt_when_running(llm)\n"
        "    while True:\n        list(llm.generate(['Hi'] * 50, ENDLESS, stream=True))",
        -signal.SIGINT,
    ),
    "a cycle that is collected in the engine's own thread": (
        "import asyncio, gc\n"
        "llm = note(LLM({model!r}))\nloop = llm._loop\nllm.itself = llm\ndel llm\n"
        "async def collect():\n    gc.collect()\n"
        "loop.run(collect)",
        0,
    ),
    "a kill": ("llm = note(LLM({model!r}))\nos.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
}


@dataclass(frozen=True)
class End:
    """What a program did, and the folder for its temporary files."""

    done: subprocess.CompletedProcess[str]
    temporary: Path


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, End]:
    """All programs, run one after the other."""
    model, folder = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny")), tmp_path_factory.mktemp("ends")
    temporary = [tmp_path_factory.mktemp("t") for _ in PROGRAMS]
    programs = [
        Program(BEGINNING + text.format(model=model), {"TMPDIR": str(own)})
        for (text, _), own in zip(PROGRAMS.values(), temporary, strict=True)
    ]
    done = run_forks(programs, folder, server_environment(), modules=["fastdeploy_lp.entrypoints.llm"])
    return {name: End(*end) for name, end in zip(PROGRAMS, zip(done, temporary, strict=True), strict=True)}


@pytest.mark.parametrize("end", PROGRAMS)
def test_nothing_is_left(ends: dict[str, End], end: str) -> None:
    (_, status), found = PROGRAMS[end], ends[end]
    done, temporary = found.done, found.temporary
    assert done.returncode == status, done.stderr
    workers = [int(pid) for pid in done.stdout.split()]
    assert len(workers) == (2 if "two engines" in end else 1)
    wait_until(lambda: not any(process_exists(pid) for pid in workers), SECONDS)
    wait_until(lambda: os.listdir(temporary) == [], SECONDS, lambda: str(os.listdir(temporary)))
    assert "never awaited" not in done.stderr
    assert "Task was destroyed" not in done.stderr
    expected = {0: "", 1: "KeyError: 'mine'", -signal.SIGINT: "KeyboardInterrupt", -signal.SIGKILL: ""}[status]
    *_, last = done.stderr.strip().splitlines() or [""]
    assert last.startswith(expected), done.stderr
