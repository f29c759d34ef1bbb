"""Tests of the load generator's HTTP client against raw sockets: what ends a response, which connections stay."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import pytest

from fastdeploy_lp.entrypoints.bench.http_client import Client, HTTPClientError

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde"
CLOSING = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nabcde"
UNTIL_EOF = b"HTTP/1.1 200 OK\r\n\r\nabcde"


class RawServer:
    """Answers each request with the next of `answers`, in pieces of `size` bytes.

    An empty answer ends the connection instead, as `close` does after every answer.
    """

    def __init__(self, answers: Sequence[bytes], *, size: int = 1000, close: bool = False) -> None:
        self._answers = iter(answers)
        self._size = size
        self._close = close
        self.connections = 0
        self.requests: list[bytes] = []
        self.handlers: list[asyncio.Task[None]] = []

    def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Asyncio brings a connection."""
        self.handlers.append(asyncio.create_task(self.handle(reader, writer)))

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                if not (answer := next(self._answers)):
                    break
                for start in range(0, len(answer), self._size):
                    writer.write(answer[start : start + self._size])
                    await writer.drain()
                if self._close:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def ask(
    server: RawServer, times: int = 1, receive: Callable[[int, bytes], None] | None = None
) -> list[tuple[int, bytes]]:
    """The status and whole body of each exchange, one after the other on one client."""

    async def exchanges() -> list[tuple[int, bytes]]:
        listener = await asyncio.start_server(server.connect, "127.0.0.1", 0)
        client = Client(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1", {"X-Key": "sesame"})
        results = []
        try:
            for _ in range(times):
                pieces: list[tuple[int, bytes]] = []
                note = receive or (lambda status, body, pieces=pieces: pieces.append((status, body)))
                await asyncio.wait_for(client.exchange("POST", "chat", b"{}", note), 30)
                results.append((pieces[-1][0], b"".join(body for _, body in pieces)))
        finally:
            await client.close()
            listener.close()
            await asyncio.gather(*server.handlers)
        return results

    return asyncio.run(exchanges())


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize(("answer", "kept"), [(CHUNKED, True), (LENGTH, True), (CLOSING, False)])
def test_bodies_and_connections(answer: bytes, kept: bool, size: int) -> None:
    """The body is the same however it comes, and a connection is used again unless the server says otherwise."""
    server = RawServer([answer] * 3, size=size, close=not kept)
    assert ask(server, 3) == [(200, b"abcde")] * 3
    assert server.connections == (1 if kept else 3)
    assert server.requests[0].startswith(b"POST /v1/chat HTTP/1.1\r\n")
    assert b"\r\nX-Key: sesame\r\n" in server.requests[0]
    assert server.requests[0].endswith(b"\r\n\r\n{}")


def test_the_end_of_the_connection_ends_a_body_without_length() -> None:
    """HTTP allows it, and whoever reads the body knows whether it is whole."""
    assert ask(RawServer([UNTIL_EOF] * 2, close=True), 2) == [(200, b"abcde")] * 2


@pytest.mark.parametrize(
    ("answer", "message"), [(b"", "closed the connection"), (b"SSH-2.0-x\r\n\r\n", "no HTTP response")]
)
def test_no_response(answer: bytes, message: str) -> None:
    """A server that hangs up, or speaks another protocol, is an error and not a wait for ever."""
    with pytest.raises(HTTPClientError, match=message):
        ask(RawServer([answer], close=True))


def test_a_request_that_meets_the_end_of_an_idle_connection_is_sent_again() -> None:
    """Servers end idle connections as they please, and that is no failed request."""
    server = RawServer([LENGTH, b"", CHUNKED])
    assert ask(server, 2) == [(200, b"abcde")] * 2
    assert server.connections == 2
    assert len(server.requests) == 3


def test_a_connection_that_ends_twice_is_an_error() -> None:
    """On a new connection the end means that the server does not answer."""
    with pytest.raises(HTTPClientError, match="closed the connection"):
        ask(RawServer([LENGTH, b"", b""]), 2)


def test_what_the_receiver_raises_reaches_the_caller() -> None:
    """A reader that finds nonsense ends its own exchange."""

    def refuse(status: int, body: bytes) -> None:
        raise ValueError(f"{status} {body!r}")

    with pytest.raises(ValueError, match="200 b'abcde'"):
        ask(RawServer([LENGTH]), receive=refuse)


@pytest.mark.parametrize("url", ["127.0.0.1:8180/v1", "ftp://127.0.0.1/v1", "http:///v1", ""])
def test_bad_url(url: str) -> None:
    """An address that is none is told before anything is sent."""
    with pytest.raises(HTTPClientError, match="must be a URL like"):
        Client(url, {})
