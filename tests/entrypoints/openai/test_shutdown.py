"""Signals to the API process: requests finish or are cut off as configured, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from support.chat import ENDLESS, chunks, opened_stream, text_of, wait_for_text
from support.server import ServerProcess, process_exists, wait_until

SHARED_MEMORY = Path("/dev/shm")
PROCESS_SECONDS = 15.0
ENDED_BY_SIGTERM = (0, -signal.SIGTERM)


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for a server's temporary files, with a short name: a unix socket's path has little room."""
    return tmp_path_factory.mktemp("t")


@pytest.fixture
def shared_memory() -> set[str]:
    """The names that exist before a server starts."""
    return set(os.listdir(SHARED_MEMORY))


def check_nothing_left(server: ServerProcess, worker_pid: int, temporary: Path, shared_memory: set[str]) -> None:
    """No process, no socket directory, no shared memory, and both ports free."""
    wait_until(lambda: not process_exists(worker_pid), PROCESS_SECONDS, lambda: "the worker lives on")
    assert not process_exists(server.pid)
    for port in (server.port, server.metrics_port):
        with socket.create_server(("127.0.0.1", port)):
            pass
    assert [entry.name for entry in temporary.glob("fastdeploy_lp-*")] == []
    mine = [name for name in set(os.listdir(SHARED_MEMORY)) - shared_memory if "fastdeploy" in name or "paddle" in name]
    assert mine == []


def accepts_connections(server: ServerProcess) -> bool:
    """Whether a new client would be let in."""
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=1):
            return True
    except OSError:
        return False


def read_to_the_end(payloads: Iterator[str]) -> list[str]:
    """What still comes; the server may cut the connection."""
    rest: list[str] = []
    with suppress(httpx.TransportError):
        rest.extend(payloads)
    return rest


def has_worker(server: ServerProcess) -> bool:
    """Whether the worker process runs."""
    try:
        return server.worker_pid > 0
    except RuntimeError:
        return False


def test_sigterm_lets_a_running_stream_finish(temporary: Path, shared_memory: set[str]) -> None:
    options = ["--timeout-graceful-shutdown", "30"]
    with ServerProcess(*options, env={"TMPDIR": str(temporary)}) as server:
        worker_pid = server.worker_pid
        body = {**ENDLESS, "max_tokens": 60, "stream_options": {"include_usage": True}}
        with opened_stream(server, body) as payloads:
            wait_for_text(payloads)
            os.kill(server.pid, signal.SIGTERM)
            wait_until(lambda: not accepts_connections(server), PROCESS_SECONDS)
            *parts, usage = chunks(payloads)
        assert server.process is not None
        assert server.process.wait(PROCESS_SECONDS) in ENDED_BY_SIGTERM
        assert "Traceback" not in server.log
        assert parts[-1]["choices"][0]["finish_reason"] == "length"
        assert usage["usage"]["completion_tokens"] == 60
        assert text_of(parts)
        check_nothing_left(server, worker_pid, temporary, shared_memory)


def test_long_generation_does_not_hold_a_short_timeout(temporary: Path, shared_memory: set[str]) -> None:
    options = ["--timeout-graceful-shutdown", "1"]
    with ServerProcess(*options, env={"TMPDIR": str(temporary)}) as server:
        worker_pid = server.worker_pid
        with opened_stream(server, ENDLESS) as payloads:
            wait_for_text(payloads)
            began = time.monotonic()
            status = server.stop(seconds=PROCESS_SECONDS)
            assert time.monotonic() - began < PROCESS_SECONDS
            assert status in ENDED_BY_SIGTERM
            rest = read_to_the_end(payloads)
        assert not any('"finish_reason":"length"' in payload for payload in rest)
        check_nothing_left(server, worker_pid, temporary, shared_memory)


def test_killed_api_process_takes_its_worker_along(temporary: Path, shared_memory: set[str]) -> None:
    with ServerProcess(env={"TMPDIR": str(temporary)}) as server:
        worker_pid = server.worker_pid
        with opened_stream(server, ENDLESS) as payloads:
            wait_for_text(payloads)
            assert server.stop(signal.SIGKILL) == -signal.SIGKILL
            read_to_the_end(payloads)
        check_nothing_left(server, worker_pid, temporary, shared_memory)


def test_second_interrupt_ends_a_stream_at_once(temporary: Path, shared_memory: set[str]) -> None:
    """Ctrl-C twice in the terminal: the first one waits for the running request, the second does not."""
    with ServerProcess(env={"TMPDIR": str(temporary)}) as server:
        worker_pid = server.worker_pid
        with opened_stream(server, ENDLESS) as payloads:
            wait_for_text(payloads)
            os.kill(server.pid, signal.SIGINT)
            wait_until(lambda: not accepts_connections(server), PROCESS_SECONDS)
            wait_for_text(payloads)
            assert server.stop(signal.SIGINT, PROCESS_SECONDS) in (130, -signal.SIGINT)
            read_to_the_end(payloads)
        assert "Traceback" not in server.log
        check_nothing_left(server, worker_pid, temporary, shared_memory)


def test_sigterm_while_the_model_loads_ends_it(temporary: Path, shared_memory: set[str]) -> None:
    server = ServerProcess(env={"TMPDIR": str(temporary)}).launch()
    try:
        wait_until(lambda: has_worker(server), PROCESS_SECONDS, lambda: server.log)
        worker_pid = server.worker_pid
        assert server.stop(seconds=PROCESS_SECONDS) in (143, *ENDED_BY_SIGTERM)
        assert "Traceback" not in server.log
        assert "ready" not in server.log
        check_nothing_left(server, worker_pid, temporary, shared_memory)
    finally:
        server.close()
