"""Bodies that arrive have a bound over all connections, and a time; small ones find room beside large ones."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from support.bounded_server import exchange, serving
from support.chat import HELLO, post
from support.guarded import MAX_BODY_SIZE
from support.server import ServerProcess, wait_until
from support.tiny import write_tiny_checkpoint

from fastdeploy_lp.entrypoints.openai import errors
from fastdeploy_lp.entrypoints.openai.listener import bodies as bodies_in_flight
from fastdeploy_lp.entrypoints.openai.listener import bodies as returned_memory
from fastdeploy_lp.entrypoints.openai.listener.bodies import BodiesInFlight, ReturnedMemory
from fastdeploy_lp.entrypoints.openai.middleware.body_limit import BodyLimitMiddleware

LARGEST, ROOM = 1_000_000, 2_500_000
SECONDS = 30.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Room for two of the largest bodies."""
    checkpoint = write_tiny_checkpoint(tmp_path_factory.mktemp("b"))
    options = ["--max-body-size", str(LARGEST), "--max-bodies-size", str(ROOM)]
    with ServerProcess(*options, model=str(checkpoint), own_metrics_port=False) as running:
        yield running


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


def test_a_key_is_asked_for_before_a_body_is_read(guarded_server: ServerProcess) -> None:
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {MAX_BODY_SIZE}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", guarded_server.port), timeout=SECONDS) as connection:
        connection.sendall(head.encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 401 ")


def application() -> Any:
    """One route, which reads its body."""
    app = FastAPI()
    errors.install(app)

    @app.post("/")
    async def size(request: Request) -> int:
        return len(await request.body())

    return BodyLimitMiddleware(app, 1000, BodiesInFlight(1000, lambda _: None))


def test_a_body_that_comes_too_slowly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies_in_flight, "BODY_SECONDS", 0.05)

    async def run() -> bytes:
        async with serving(application()) as port:
            return await exchange(port, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")

    received = asyncio.run(run())
    assert received.startswith(b"HTTP/1.1 408 ")
    assert b'"code": "body_timeout"' in received


WHOLE = b"Content-Length: 3\r\n\r\nabc"
IN_CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"


@pytest.mark.parametrize("framing", [WHOLE, IN_CHUNKS])
def test_a_body_is_read_whole(framing: bytes) -> None:
    async def run() -> bytes:
        async with serving(application()) as port:
            return await exchange(port, b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + framing)

    assert asyncio.run(run()).endswith(b"3")


def test_a_chunk_beyond_the_bound_makes_no_body_give_way() -> None:
    """It may have more bytes than all bodies may: 413 for its own size, and not 503 for want of room."""
    chunked = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def run() -> bytes:
        async with serving(application()) as port:
            return await exchange(port, chunked + b"7d0\r\n" + b"a" * 2000 + b"\r\n0\r\n\r\n")

    assert asyncio.run(run()).startswith(b"HTTP/1.1 413 ")


def test_the_client_that_has_most_loses_its_largest() -> None:
    bodies = BodiesInFlight(100, lambda _: None)
    small, large, other = bodies.begin("one"), bodies.begin("one"), bodies.begin("other")
    small.grow(20)
    large.grow(30)
    other.grow(45)
    assert not [each for each in (small, large, other) if each.gave_way]
    newcomer = bodies.begin("third")
    newcomer.grow(10)
    assert [each.gave_way for each in (small, large, other, newcomer)] == [False, True, False, False]
    assert bodies.bytes == 75
    newcomer.grow(50)
    assert newcomer.gave_way
    for each in (small, large, other, newcomer):
        each.release()
    assert bodies.bytes == 0


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_memory_goes_back_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(returned_memory, "DELAY_SECONDS", 0.0)
    # Below the size that the C library maps by itself; the last one keeps the others' pages in the heap.
    pieces = [bytes(50_000) for _ in range(2000)]
    held = resident()
    last = pieces.pop()
    size = sum(map(len, pieces))
    pieces.clear()

    async def run() -> None:
        memory = ReturnedMemory()
        memory.freed(size)
        while resident() > held - size // 2:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), SECONDS))
    assert last
