"""Bodies that arrive have a bound over all connections, and a time; small ones find room beside large ones."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request
from support.bounded_server import exchange, serving
from support.guarded import MAX_BODY_SIZE
from support.server import ServerProcess

from fastdeploy_lp.entrypoints.openai import errors
from fastdeploy_lp.entrypoints.openai.listener import bounds
from fastdeploy_lp.entrypoints.openai.listener.bounds import BodiesInFlight, ReturnedMemory
from fastdeploy_lp.entrypoints.openai.middleware.layers import BodyLimitMiddleware

SECONDS = 30.0


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
    monkeypatch.setattr(bounds, "BODY_SECONDS", 0.05)

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
    monkeypatch.setattr(bounds, "DELAY_SECONDS", 0.0)
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
