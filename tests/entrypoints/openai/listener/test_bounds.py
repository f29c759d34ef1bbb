"""Bounds of a real server on connections and bodies: what stands still gives way, requests go on."""

from __future__ import annotations

import json
import resource
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from support.chat import HELLO, chunks, opened_stream, post, wait_for_text
from support.server import ServerProcess, health, wait_until
from support.supervised import LONG, supervised_server

LIMIT, OF_ONE_CLIENT, IDLE = 30, 25, 100
OTHER_CLIENT = "127.0.0.2"
LARGEST, ROOM = 1_000_000, 2_500_000
SECONDS = 30.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Lets few connections stand, and has room for two of the largest bodies."""
    limits = ["--max-connections", str(LIMIT), "--max-connections-per-client", str(OF_ONE_CLIENT)]
    limits += ["--max-body-size", str(LARGEST), "--max-bodies-size", str(ROOM)]
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
        stream = stack.enter_context(opened_stream(server, {**LONG, "max_tokens": 600}))
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


def unfinished(stack: ExitStack, server: ServerProcess) -> socket.socket:
    """A request whose body lacks its last byte."""
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS))
    head = f"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {LARGEST}\r\n\r\n"
    connection.sendall(head.encode() + b" " * (LARGEST - 1))
    return connection


def answered(connection: socket.socket) -> bytes:
    connection.setblocking(False)
    try:
        return connection.recv(1 << 16)
    except BlockingIOError:
        return b""


def test_unfinished_bodies_have_a_bound_and_hold_up_nobody(server: ServerProcess) -> None:
    with ExitStack() as stack:
        sending = [unfinished(stack, server) for _ in range(20)]
        answers: dict[int, bytes] = {}

        def all_but_two_refused() -> bool:
            for place, each in enumerate(sending):
                answers[place] = answers.get(place, b"") + answered(each)
                if not answers[place]:
                    del answers[place]
            whole = sum(told.endswith(b"}") for told in answers.values())
            return whole == len(sending) - ROOM // LARGEST

        wait_until(all_but_two_refused, SECONDS)
        for told in answers.values():
            assert told.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: " in told.lower()
            assert b'"code": "too_many_bodies"' in told
        assert post(server, {"messages": HELLO, "max_tokens": 2}).status_code == 200
        # The others can go on.
        (waiting,) = [each for place, each in enumerate(sending) if place not in answers][:1]
        waiting.setblocking(True)
        waiting.sendall(b" ")
        assert waiting.recv(1 << 16).startswith(b"HTTP/1.1 400 ")


def test_bodies_that_were_parsed_do_not_count(server: ServerProcess) -> None:
    body = b'{"prompt": "the"%s}' % (b" " * (LARGEST - 20))
    headers = {"Content-Type": "application/json"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=SECONDS) as client:
        for _ in range(2 * ROOM // LARGEST):
            assert client.post("/tokenize", content=body).status_code == 200
