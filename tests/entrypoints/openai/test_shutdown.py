"""Signals to the API process: it drains as configured or ends at once, and nothing is left behind.

Draining that takes too long is in test_queue.py, a killed API process in test_data_parallel.py.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import pytest
from support.chat import HELLO, chunks, opened_stream, post, text_of, wait_for_text
from support.errors import check_error
from support.leftovers import PROCESS_SECONDS, REGISTERS, SHARED_MEMORY, check_nothing_left, read_to_the_end
from support.server import ServerProcess, health, wait_until
from support.supervised import LONG, kill_worker, supervised_server, wait_for_new_worker

ENDED_BY_SIGTERM = (0, -signal.SIGTERM)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for a server's files, with a short name: a unix socket's path has little room."""
    return tmp_path_factory.mktemp("s")


@pytest.fixture
def shared_memory() -> set[str]:
    """The names that exist before a server starts."""
    return set(os.listdir(SHARED_MEMORY))


def serving(folder: Path, *options: str) -> ServerProcess:
    """A server with a processor that comes with a runtime of LLVM's OpenMP."""
    return supervised_server(folder, "--logits-processors", REGISTERS, *options)


def test_sigterm_lets_a_running_stream_finish(folder: Path, shared_memory: set[str]) -> None:
    """Meanwhile the server says that it is not ready, and sends others elsewhere."""
    with serving(folder, "--timeout-graceful-shutdown", "60") as server:
        worker_pid = server.worker_pid
        body = {**LONG, "max_tokens": 800, "stream_options": {"include_usage": True}}
        with opened_stream(server, body) as payloads:
            wait_for_text(payloads)
            os.kill(server.pid, signal.SIGTERM)
            wait_until(lambda: health(server.url) == 503, PROCESS_SECONDS)
            refused = post(server, {"messages": HELLO})
            assert check_error(refused, 503)["code"] == "server_draining"
            assert int(refused.headers["retry-after"]) > 0
            assert httpx.get(f"{server.url}/health/ready").status_code == 503
            assert httpx.get(f"{server.url}/health/live").status_code == 200
            *parts, usage = chunks(payloads)
        assert server.process is not None
        assert server.process.wait(PROCESS_SECONDS) in ENDED_BY_SIGTERM
        assert "Traceback" not in server.log
        assert parts[-1]["choices"][0]["finish_reason"] == "length"
        assert usage["usage"]["completion_tokens"] == 800
        assert text_of(parts)
        check_nothing_left(server, worker_pid, before=shared_memory)


def test_both_killed_at_once_leave_nothing(folder: Path, shared_memory: set[str]) -> None:
    with serving(folder) as server:
        worker_pid = server.worker_pid
        for pid in (server.pid, worker_pid):
            assert f"{pid} is registered" in server.log
        for pid in (worker_pid, server.pid):
            os.kill(pid, signal.SIGSTOP)
        for pid in (worker_pid, server.pid):
            os.kill(pid, signal.SIGKILL)
        assert server.process is not None
        assert server.process.wait(PROCESS_SECONDS) == -signal.SIGKILL
        check_nothing_left(server, worker_pid, before=shared_memory)


@pytest.mark.parametrize(
    ("first", "second", "statuses"),
    [
        (signal.SIGINT, signal.SIGINT, (130, -signal.SIGINT)),
        # The first one is that of the stream that may finish, above.
        pytest.param(signal.SIGTERM, signal.SIGTERM, ENDED_BY_SIGTERM, marks=pytest.mark.long),
    ],
)
def test_second_signal_ends_a_stream_at_once(
    folder: Path, shared_memory: set[str], first: int, second: int, statuses: tuple[int, ...]
) -> None:
    """The first one waits for the running request, the second does not."""
    with serving(folder) as server:
        worker_pid = server.worker_pid
        with opened_stream(server, LONG) as payloads:
            wait_for_text(payloads)
            os.kill(server.pid, first)
            wait_until(lambda: health(server.url) == 503, PROCESS_SECONDS)
            wait_for_text(payloads)
            assert server.stop(second, PROCESS_SECONDS) in statuses
            read_to_the_end(payloads)
        assert "Traceback" not in server.log
        check_nothing_left(server, worker_pid, before=shared_memory)


def test_sigterm_while_the_model_loads_ends_it(folder: Path, shared_memory: set[str]) -> None:
    server = serving(folder).launch()
    try:
        worker_pid = wait_for_new_worker(server, ready=False)
        assert server.stop(seconds=PROCESS_SECONDS) in (143, *ENDED_BY_SIGTERM)
        assert "Traceback" not in server.log
        assert "ready" not in server.log
        check_nothing_left(server, worker_pid, before=shared_memory)
    finally:
        server.close()


def test_sigterm_while_a_worker_is_replaced_ends_both(folder: Path, shared_memory: set[str]) -> None:
    with serving(folder) as server:
        old = kill_worker(server)
        new = wait_for_new_worker(server, old, ready=False)
        assert server.stop(seconds=PROCESS_SECONDS) in ENDED_BY_SIGTERM
        assert "Traceback" not in server.log
        for worker_pid in (old, new):
            check_nothing_left(server, worker_pid, before=shared_memory)
