"""Constructors, `validate_params` and `Params` that take their time hold up no health check and no other stream."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.chat import HELLO, chunks, opened_stream, post
from support.held import ERRORS, NAMES
from support.server import ServerProcess

HEALTH_CHECKS = 20
TOKENS = 24


@pytest.fixture
def server(authors_server: ServerProcess) -> ServerProcess:
    return authors_server


def asking(name: str, **params: Any) -> dict[str, Any]:
    return {"messages": HELLO, "max_tokens": 3, "ignore_eos": True, "logits_processors": {name: params}}


@contextmanager
def held(server: ServerProcess, name: str, gate: Path) -> Iterator[Future[httpx.Response]]:
    """A request whose processor's code waits inside the block."""
    os.mkfifo(gate)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(post, server, asking(name, gate=str(gate)))
        # Returns when the code has opened the pipe for reading, and closing it lets the code go on.
        with open(gate, "wb"):
            yield answer
            # An instance that is built once more finds a file, which does not hold it.
            gate.unlink()
            gate.touch()


@pytest.mark.parametrize("name", NAMES)
def test_the_server_serves_others_while_a_processors_code_waits(
    server: ServerProcess, name: str, tmp_path: Path
) -> None:
    with held(server, name, tmp_path / "gate") as answer:
        for _ in range(HEALTH_CHECKS):
            assert httpx.get(f"{server.url}/health/live").status_code == 200
        body = {"messages": HELLO, "max_tokens": TOKENS, "ignore_eos": True, "return_token_ids": True}
        with opened_stream(server, body) as payloads:
            parts = chunks(payloads)
        assert sum(len(choice.get("token_ids") or ()) for part in parts for choice in part["choices"]) == TOKENS
        assert not answer.done()
    assert answer.result().status_code == 200


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("name", ["HeldParams", "HeldCheck"])
def test_any_exception_of_a_check_is_a_400_with_the_processors_name(
    server: ServerProcess, name: str, error: str
) -> None:
    answer = post(server, asking(name, error=error))
    assert answer.status_code == 400
    told = answer.json()["error"]
    assert told["param"].startswith(f"logits_processors.{name}")
    assert error in told["message"]
    assert httpx.get(f"{server.url}/health").status_code == 200


@pytest.mark.parametrize("error", ERRORS)
def test_any_exception_of_a_constructor_ends_its_request_alone(server: ServerProcess, error: str) -> None:
    pid = server.worker_pid
    answer = post(server, asking("HeldInstance", error=error))
    assert answer.status_code == 400
    assert error in answer.json()["error"]["message"]
    assert "HeldInstance" in answer.json()["error"]["message"]
    assert server.worker_pid == pid
    assert httpx.post(f"{server.url}/v1/logits_processors/HeldInstance/reset").status_code < 500
