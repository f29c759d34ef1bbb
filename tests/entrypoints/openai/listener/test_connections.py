"""Connections on which nothing happens give way, those that carry requests do not."""

from __future__ import annotations

import asyncio
import json
import resource
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from support.bounded_server import exchange, serving
from support.chat import HELLO, chunks, opened_stream, post, wait_for_text
from support.server import ServerProcess, health, wait_until
from support.supervised import LONG, supervised_server

from fastdeploy_lp.entrypoints.openai.listener import connections
from fastdeploy_lp.entrypoints.openai.listener.bounds import MAX_BYTES_OF_HEADS, ConnectionBounds, client_of

LIMIT, OF_ONE_CLIENT, IDLE = 20, 15, 100
OTHER_CLIENT = "127.0.0.2"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Lets few connections stand."""
    limits = ["--max-connections", str(LIMIT), "--max-connections-per-client", str(OF_ONE_CLIENT)]
    with supervised_server(tmp_path_factory.mktemp("s"), *limits) as running:
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


HALF_A_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost:"
HALF_A_BODY = HALF_A_HEAD + b" here\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"


@pytest.mark.parametrize("sent", [b"", HALF_A_HEAD, HALF_A_BODY], ids=["silent", "half a head", "half a body"])
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
        wait_until(lambda: all(map(is_closed, idle[: IDLE - OF_ONE_CLIENT])), 30)
        assert not is_closed(idle[-1])
        assert chunks(stream)[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("sent", [b"", HALF_A_HEAD, HALF_A_BODY], ids=["silent", "half a head", "half a body"])
def test_who_does_not_go_on_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.1)

    async def run() -> bytes:
        async def app(scope: object, receive: object, send: object) -> None:
            await asyncio.Event().wait()

        async with serving(app) as port:
            return await exchange(port, sent)

    assert asyncio.run(run()) == b""


def test_one_clients_connections_leave_room_for_others(server: ServerProcess) -> None:
    with ExitStack() as stack:
        other = socket.create_connection(("127.0.0.1", server.port), 30, source_address=(OTHER_CLIENT, 0))
        stack.enter_context(other)
        mine = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30)) for _ in range(IDLE)
        ]
        wait_until(lambda: all(map(is_closed, mine[: IDLE - OF_ONE_CLIENT])), 30)
        assert not is_closed(other)


def test_connections_to_the_metrics_port_have_no_thread_and_the_same_bounds(server: ServerProcess) -> None:
    with ExitStack() as stack:
        assert httpx.get(server.metrics_url).status_code == 200
        before = num_threads(server)
        idle = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.metrics_port), timeout=30))
            for _ in range(IDLE)
        ]
        wait_until(lambda: all(map(is_closed, idle[: IDLE - OF_ONE_CLIENT])), 30)
        # Both ports share one room: what is idle at this one gives way to the other's.
        assert post(server, {"messages": HELLO, "max_tokens": 2}).status_code == 200
        assert httpx.get(server.metrics_url).status_code == 200
        assert num_threads(server) <= before + 2


def num_threads(server: ServerProcess) -> int:
    return len(list(Path(f"/proc/{server.pid}/task").iterdir()))


def test_the_metrics_port_has_the_bounds_on_heads_and_nothing_but_metrics(server: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", server.metrics_port), timeout=30) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\n" + b"a" * 1_000_000)
        assert connection.recv(4096).startswith(b"HTTP/1.1 431 ")
    assert httpx.get(server.metrics_url.replace("metrics", "v1/models")).status_code == 404


class Peer:
    """A connection that records that it was told to end."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.gone = False

    def give_way(self) -> None:
        self.gone = True


def test_one_who_works_does_not_give_way() -> None:
    bounds = ConnectionBounds(limit=100, per_client=3)
    peers = [Peer("a") for _ in range(5)]
    for peer in peers[:3]:
        bounds.came(peer)
        bounds.works(peer)
    for peer in peers[3:]:
        bounds.came(peer)
    assert [peer.gone for peer in peers] == [False, False, False, True, True]
    for peer in peers[3:]:
        bounds.left(peer)
    bounds.rests(peers[1])
    another = Peer("a")
    bounds.came(another)
    assert [peer.gone for peer in [*peers[:3], another]] == [False, True, False, False]


def test_unfinished_heads_have_a_bound_over_all_connections() -> None:
    bounds = ConnectionBounds(limit=1000, per_client=1000)
    peers = [Peer(str(number)) for number in range(12)]
    for peer in peers:
        bounds.came(peer)
        bounds.holds_of_head(peer, 10)
        bounds.holds_of_head(peer, MAX_BYTES_OF_HEADS // 10)
    assert [peer.gone for peer in peers] == [True, True, *[False] * 10]
    bounds.holds_of_head(peers[2], 0)
    bounds.holds_of_head(peers[0], MAX_BYTES_OF_HEADS // 10)
    assert not peers[3].gone


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
    ],
)
def test_an_ipv6_network_is_one_client(one: str, other: str, same: bool) -> None:
    assert (client_of(one) == client_of(other)) is same


FIRST_NUMBER = 3


def test_when_no_file_can_be_opened_the_log_says_so_and_the_server_goes_on(server: ServerProcess) -> None:
    soft, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
        wait_until(lambda: health(server.url) == 200, 30)
        # Below the numbers in use, so that there is none left when some of these become free.
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (FIRST_NUMBER, hard))
        try:
            wait_until(lambda: "no file can be opened" in server.log, 30)
        finally:
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (soft, hard))
        wait_until(lambda: "files can be opened again" in server.log, 30)
    assert post(server, {"messages": HELLO, "max_tokens": 2}).status_code == 200


def test_what_is_no_http_gets_an_openai_error(server: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(b"no HTTP at all\r\n\r\n")
        head, _, body = b"".join(iter(lambda: connection.recv(4096), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert f"content-length: {len(body)}".encode() in head
    assert json.loads(body)["error"]["code"] == "invalid_http"


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
