"""Bodies that nobody reads are spread over time, and their clients see the answer none the less."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.bounded_server import answer, serving

from fastdeploy_lp.entrypoints.openai.listener.bounds import UnreadBodies

MEBIBYTE = 1 << 20


def test_connections_share_the_pace() -> None:
    bodies = UnreadBodies(bytes_per_second=1)
    assert bodies.pause_after(500) == pytest.approx(500, abs=60)
    assert bodies.pause_after(1500) == pytest.approx(2000, abs=60)


def test_who_sends_a_whole_body_first_sees_why_it_was_refused() -> None:
    async def refuses(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, body=b"refused")

    async def run() -> bytes:
        async with serving(refuses) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            size = 8 * MEBIBYTE
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size)
            for _ in range(size // MEBIBYTE):
                writer.write(b" " * MEBIBYTE)
                await writer.drain()
            received = await reader.readuntil(b"refused")
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            received += await reader.read()
            writer.close()
            return received

    assert asyncio.run(run()).count(b"HTTP/1.1 200 ") == 2
