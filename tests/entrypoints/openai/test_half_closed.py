"""A client that sends no more may still wait for its answer; one that is gone does not get one computed."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from support.bounded_server import answer, exchange, serving
from support.chat import metric, wait_for_running
from support.server import ServerProcess, wait_until

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def server(lasting_server: ServerProcess) -> ServerProcess:
    return lasting_server


def request(body: str) -> bytes:
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n{body}".encode()


@pytest.mark.parametrize("stream", ["false", "true"])
def test_who_sends_no_more_is_answered(server: ServerProcess, stream: str) -> None:
    sent = request(f'{{"prompt": "the", "max_tokens": 50, "ignore_eos": true, "stream": {stream}}}')
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        received = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert b"HTTP/1.1 200 " in received
    assert b'"finish_reason":"length"' in received


def test_who_sends_no_more_in_the_middle_of_a_stream_gets_the_rest(server: ServerProcess) -> None:
    sent = request('{"prompt": "the", "max_tokens": 300, "ignore_eos": true, "stream": true}')
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(sent)
        received = connection.recv(1 << 16)
        connection.shutdown(socket.SHUT_WR)
        received += b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert b'"finish_reason":"length"' in received


def test_who_is_gone_in_the_middle_of_a_stream_frees_its_slot(server: ServerProcess) -> None:
    before = metric(server, "request_aborted_total")
    sent = request('{"prompt": "the", "max_tokens": 30000, "ignore_eos": true, "stream": true}')
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(sent)
        assert connection.recv(1 << 16)
    wait_until(lambda: metric(server, "request_aborted_total") == before + 1, 30)


@pytest.mark.parametrize("stream", ["false", "true"])
def test_who_is_gone_frees_its_slot(server: ServerProcess, stream: str) -> None:
    before = metric(server, "request_aborted_total")
    sent = request(f'{{"prompt": "the", "max_tokens": 30000, "ignore_eos": true, "stream": {stream}}}')
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(sent)
        wait_for_running(server, 1)
    wait_until(lambda: metric(server, "request_aborted_total") == before + 1, 30)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_the_answer_may_take_any_time(version: str) -> None:
    """The interim answer, which tells a client that waits from one that is gone, is none of HTTP 1.0."""
    ended = asyncio.Event()

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await ended.wait()
        await answer(send, body=b"late")

    async def run() -> bytes:
        async with serving(waits) as port:
            asking = asyncio.create_task(exchange(port, GET.replace(b"1.1", version.encode()), half_close=True))
            # Longer than it takes to notice a client that is gone.
            done, _ = await asyncio.wait({asking}, timeout=0.3)
            assert not done
            ended.set()
            return await asking

    received = asyncio.run(run())
    assert received.endswith(b"late")
    assert received.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 " if version == "1.1" else b"HTTP/1.1 200 ")


@pytest.mark.parametrize("gone", [True, False], ids=["gone", "reads"])
def test_an_answer_that_has_begun_and_does_not_go_on(gone: bool) -> None:
    """As that of a stream whose request waits for a slot: no bytes of its own would tell who is gone."""
    left, ended = asyncio.Event(), asyncio.Event()

    async def begins(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        waits = [asyncio.ensure_future(ended.wait()), asyncio.ensure_future(receive())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if waits[1].done():
            left.set()
        else:
            await send({"type": "http.response.body", "body": b"second"})

    async def run() -> None:
        async with serving(begins) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET)
            await reader.readuntil(b"first\r\n")
            if gone:
                writer.close()
                await asyncio.wait_for(left.wait(), 30)
                return
            writer.write_eof()
            assert await reader.readexactly(1) == b"0"
            ended.set()
            assert await reader.read() == b"6\r\nsecond\r\n0\r\n\r\n"
            writer.close()

    asyncio.run(run())


def test_half_a_request_is_none() -> None:
    async def never(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("called")

    async def run() -> bytes:
        async with serving(never) as port:
            return await exchange(port, GET[:-4], half_close=True)

    assert asyncio.run(run()) == b""


def test_all_requests_of_a_pipeline_are_answered() -> None:
    async def at_once(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0)
        await answer(send)

    async def run() -> bytes:
        async with serving(at_once) as port:
            return await exchange(port, GET * 3, half_close=True)

    assert asyncio.run(run()).count(b"HTTP/1.1 200 ") == 3
