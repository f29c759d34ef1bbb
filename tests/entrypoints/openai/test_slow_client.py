"""A client that reads slowly gets everything in the end, and one that does not read holds nobody up."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.chat import HELLO, metric, post, wait_for_running
from support.server import ServerProcess, wait_until
from support.supervised import LONG, supervised_server

CHOICES, TOKENS, UNREAD = 2, 32, 200
SECONDS = 60.0
# Far more than the tokens that may stay unread take, so that the log shows which bound ended a stream.
STREAM_SECONDS = 10
# Stands in every chunk, so that few tokens fill all buffers between the server and the client.
LONG_NAME = "m" * 100_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Its chunks are large; few of them may stay unread, and not for long."""
    options = ["--served-model-name", LONG_NAME, "--max-num-seqs", str(CHOICES)]
    options += ["--stream-timeout", str(STREAM_SECONDS), "--max-unread-tokens", str(UNREAD)]
    with supervised_server(tmp_path_factory.mktemp("s"), *options) as running:
        yield running


@contextmanager
def unread_stream(server: ServerProcess, body: dict[str, Any]) -> Iterator[socket.socket]:
    """A connection with little room, on which a stream was asked for that nobody reads."""
    data = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.0\r\nHost: server\r\nContent-Type: application/json\r\n"
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        yield connection


def read_all(connection: socket.socket) -> bytes:
    """All that comes until the server has closed it."""
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def test_client_that_reads_when_all_is_generated_misses_nothing(server: ServerProcess) -> None:
    """While the connection is full, tokens gather; the last of them carry each choice's reason."""
    fields = {"n": CHOICES, "seed": 3, "max_tokens": TOKENS, "ignore_eos": True}
    body = {"messages": HELLO, **fields, "stream": True, "stream_options": {"include_usage": True}}
    with unread_stream(server, body) as connection:
        wait_until(lambda: metric(server, "generation_tokens_total") >= CHOICES * TOKENS, 60)
        connection.settimeout(60)
        received = read_all(connection).decode()
    payloads = [line.removeprefix("data: ") for line in received.splitlines() if line.startswith("data: ")]
    assert payloads[-1] == "[DONE]"
    *parts, usage = [json.loads(payload) for payload in payloads[:-1]]
    reasons = [choice["finish_reason"] for part in parts for choice in part["choices"] if choice["finish_reason"]]
    assert reasons == ["length"] * CHOICES
    assert usage["usage"]["completion_tokens"] == CHOICES * TOKENS


def check_that_it_loses_its_request(server: ServerProcess, body: dict[str, Any]) -> tuple[float, int]:
    """Its slot is free for others and its connection is gone.

    Returns the seconds for which it read nothing and its number of unread tokens, as the log has them.
    """
    stalled, logged = metric(server, "stream_stalled_total"), len(server.log)
    with unread_stream(server, {**body, "stream": True}) as connection:
        wait_until(lambda: metric(server, "stream_stalled_total") == stalled + 1, SECONDS)
        wait_for_running(server, 0)
        assert post(server, {**LONG, "max_tokens": 2}).status_code == 200
        connection.settimeout(SECONDS)
        with pytest.raises(ConnectionResetError):
            read_all(connection)
    assert "Traceback" not in server.log
    reason = r"its client has read nothing for ([\d.]+) s, and (\d+) tokens wait for it"
    ((seconds, tokens),) = re.findall(reason, server.log[logged:])
    return float(seconds), int(tokens)


def test_client_that_leaves_too_many_tokens_unread_loses_its_request(server: ServerProcess) -> None:
    aborted = metric(server, "request_aborted_total")
    seconds, tokens = check_that_it_loses_its_request(server, LONG)
    assert tokens > UNREAD
    assert seconds <= STREAM_SECONDS
    assert metric(server, "request_aborted_total") == aborted + 1


def test_client_that_reads_nothing_for_too_long_loses_its_request(server: ServerProcess) -> None:
    """Though all of its tokens are generated, and may stay unread."""
    seconds, tokens = check_that_it_loses_its_request(server, {**LONG, "max_tokens": UNREAD // 2})
    # The log rounds them.
    assert seconds >= STREAM_SECONDS
    assert 0 < tokens < UNREAD


def test_client_that_reads_slowly_but_steadily_keeps_its_request(server: ServerProcess) -> None:
    """However long all of it takes: only a pause counts."""
    stalled = metric(server, "stream_stalled_total")
    generated = metric(server, "generation_tokens_total")
    with unread_stream(server, {**LONG, "max_tokens": TOKENS, "stream": True}) as connection:
        connection.settimeout(SECONDS)
        wait_until(lambda: metric(server, "generation_tokens_total") >= generated + TOKENS, SECONDS)
        received = read_all(connection)
    assert b"data: [DONE]\n\n" in received
    assert metric(server, "stream_stalled_total") == stalled
