"""What a head may hold is bounded before anything else is done with it, keys included."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest
from support.bounded_server import answer, exchange, serving
from support.guarded import AUTH
from support.server import ServerProcess

from fastdeploy_lp.entrypoints.openai.listener import connections
from fastdeploy_lp.entrypoints.openai.listener.bounds import (
    MAX_HEAD_BYTES,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_URL_BYTES,
    SEPARATORS,
)
from fastdeploy_lp.entrypoints.openai.listener.connections import MAX_PIPELINED

LINE = b"GET /health HTTP/1.1\r\n"
MUCH = 1_000_000
CLOSE = b"Connection: close\r\n\r\n"
BODY = b"POST /health HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"

TOO_MUCH = {
    "endless URL": (b"GET /" + b"a" * MUCH, 414),
    "endless header name": (LINE + b"a" * MUCH, 431),
    "endless header value": (LINE + b"a: " + b"b" * MUCH, 431),
    "headers without end": (LINE + b"a: b\r\n" * (MUCH // 6), 431),
    "many headers": (LINE + b"a: b\r\n" * MAX_HEADERS + CLOSE, 431),
    "long URL": (b"GET /" + b"a" * MAX_URL_BYTES + b" HTTP/1.1\r\n" + CLOSE, 414),
    "long header": (LINE + b"a: " + b"b" * MAX_HEADER_BYTES + b"\r\n" + CLOSE, 431),
    "large head": (LINE + (b"a: " + b"b" * 10_000 + b"\r\n") * 4 + CLOSE, 431),
    "endless trailer": (BODY + b"0\r\na: " + b"b" * MUCH, 431),
    "endless chunk extension": (BODY + b"2;" + b"b" * MUCH, 431),
    "trailers without end": (BODY + b"0\r\n" + b"a: b\r\n" * (MUCH // 6), 431),
}
LARGEST = {
    "URL": b"GET /" + b"a" * (MAX_URL_BYTES - 1) + b" HTTP/1.1\r\n" + CLOSE,
    "header": LINE + b"a: " + b"b" * (MAX_HEADER_BYTES - SEPARATORS - 1) + b"\r\n" + CLOSE,
    "headers": LINE + b"a: b\r\n" * (MAX_HEADERS - 1) + CLOSE,
}


async def reads(scope: Any, receive: Any, send: Any) -> None:
    """Answers when the body is there."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        if not message["more_body"]:
            break
    await answer(send)


def status_and_code(received: bytes) -> tuple[int, str]:
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    return int(head.split(b" ")[1]), json.loads(body)["error"]["code"]


@pytest.mark.parametrize("name", TOO_MUCH)
def test_what_exceeds_a_bound_is_refused_and_the_connection_closed(name: str) -> None:
    sent, status = TOO_MUCH[name]

    async def run() -> bytes:
        async with serving(reads) as port:
            return await exchange(port, sent)

    code = {414: "url_too_long", 431: "headers_too_large"}[status]
    assert status_and_code(asyncio.run(run())) == (status, code)


@pytest.mark.parametrize("name", LARGEST)
def test_the_largest_that_is_allowed_is_served(name: str) -> None:
    async def run() -> bytes:
        async with serving(reads) as port:
            return await exchange(port, LARGEST[name])

    assert asyncio.run(run()).startswith(b"HTTP/1.1 200 ")


def test_the_parser_keeps_no_more_than_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it is fed with until a refusal, and nothing after it."""
    fed: list[int] = []
    parse = connections.Connection._parse

    def counting(self: connections.Connection, part: memoryview) -> bool:
        fed.append(len(part))
        return parse(self, part)

    monkeypatch.setattr(connections.Connection, "_parse", counting)

    async def run() -> None:
        async with serving(reads) as port:
            await exchange(port, LINE + b"a" * MUCH)

    asyncio.run(run())
    assert MAX_HEAD_BYTES < sum(fed) <= MAX_HEAD_BYTES + connections.SLICE


def test_a_head_that_comes_slowly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.05)

    async def run() -> bytes:
        async with serving(reads) as port:
            return await exchange(port, LINE)

    assert status_and_code(asyncio.run(run())) == (408, "head_timeout")


def test_requests_behind_one_that_runs_are_bounded() -> None:
    """Each costs a hundred times its bytes; the one that runs is answered, those that were parsed after it, too."""
    begun = asyncio.Event()
    go_on = asyncio.Event()
    answered: list[int] = []

    async def held(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        await go_on.wait()
        answered.append(1)
        await answer(send)

    async def run() -> bytes:
        async with serving(held) as port:
            reading = asyncio.create_task(exchange(port, (LINE + b"\r\n") * 5000))
            await begun.wait()
            go_on.set()
            return await reading

    received = asyncio.run(run())
    assert received.count(b"HTTP/1.1 200 ") == len(answered) == MAX_PIPELINED + 1


@pytest.mark.parametrize("after", [b"no HTTP at all\r\n\r\n", b"\0\xff", LINE + b"a" * MUCH])
def test_a_running_answer_is_not_spoiled_by_what_follows_it(monkeypatch: pytest.MonkeyPatch, after: bytes) -> None:
    go_on = asyncio.Event()
    refuse = connections.Connection._refuse

    def noticed(self: connections.Connection, error: Any) -> None:
        refuse(self, error)
        go_on.set()

    monkeypatch.setattr(connections.Connection, "_refuse", noticed)

    async def held(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"on", "more_body": True})
        await go_on.wait()
        await send({"type": "http.response.body", "body": b"e!"})

    async def run() -> bytes:
        async with serving(held) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(LINE + b"\r\n")
            begun = await reader.readuntil(b"on")
            writer.write(after)
            rest = await reader.read()
            writer.close()
            await writer.wait_closed()
            return begun + rest

    assert asyncio.run(run()).endswith(b"\r\n\r\none!")


@pytest.mark.parametrize(("sent", "status"), [(b"GET /" + b"a" * MUCH, 414), (LINE + b"a: " + b"b" * MUCH, 431)])
def test_heads_are_bounded_before_keys_are_asked_for(guarded_server: ServerProcess, sent: bytes, status: int) -> None:
    with socket.create_connection(("127.0.0.1", guarded_server.port), timeout=30) as connection:
        connection.sendall(sent)
        assert status_and_code(b"".join(iter(lambda: connection.recv(4096), b"")))[0] == status


def test_upgrades_are_answered_as_plain_requests(guarded_server: ServerProcess) -> None:
    key = f"Authorization: {AUTH['Authorization']}\r\n".encode()
    sent = b"GET /version HTTP/1.1\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n" + key + b"\r\n"
    with socket.create_connection(("127.0.0.1", guarded_server.port), timeout=30) as connection:
        connection.sendall(sent)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
