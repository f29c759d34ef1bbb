"""Connections on which nothing happens give way, those that carry requests do not."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from support.chat import HELLO, chunks, opened_stream, post, wait_for_text
from support.server import ServerProcess, health, wait_until
from support.supervised import LONG, supervised_server

LIMIT, IDLE = 20, 100


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Lets few connections stand."""
    with supervised_server(tmp_path_factory.mktemp("s"), "--max-connections", str(LIMIT)) as running:
        yield running


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has ended it."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost:"], ids=["silent", "half a head"])
def test_more_idle_connections_than_may_stand_do_not_stop_service(server: ServerProcess, sent: bytes) -> None:
    with ExitStack() as stack:
        stream = stack.enter_context(opened_stream(server, {**LONG, "max_tokens": 2000}))
        wait_for_text(stream)
        idle = []
        for _ in range(IDLE):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            connection.sendall(sent)
            idle.append(connection)
        assert post(server, {"messages": HELLO, "max_tokens": 2}).status_code == 200
        assert health(server.url) == 200
        # The oldest have gone, the youngest are there.
        wait_until(lambda: all(map(is_closed, idle[: IDLE - LIMIT])), 30)
        assert not is_closed(idle[-1])
        assert chunks(stream)[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.long
def test_clients_give_an_idle_connection_up_before_the_server_does(server: ServerProcess) -> None:
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(request)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        # As long as common proxies keep theirs.
        assert select.select([connection], [], [], 60)[0] == []
        connection.sendall(request)
        connection.settimeout(30)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
