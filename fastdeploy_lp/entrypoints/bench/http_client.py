"""A small HTTP/1.1 client for load generators, which streams responses at a low cost per piece of a body."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools


class HTTPClientError(Exception):
    """A failed exchange: an invalid URL, a closed connection, or a response that is not HTTP."""


class UnansweredError(HTTPClientError):
    """The connection ended before the first byte of a response."""


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection that carries one exchange at a time.

    Passes received data directly to the exchange's receiver, without waking a task: if the server runs on the same
    machine, the client's work per chunk reduces the measured performance.
    """

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._answered = False
        self._complete = False
        self._keep_alive = False
        self._receive: Callable[[int, bytes], None] | None = None
        self._ended: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._lost: asyncio.Future[None] | None = None

    @property
    def reusable(self) -> bool:
        """True if another exchange may follow."""
        alive = self._transport is not None and not self._transport.is_closing()
        return alive and self._complete and self._keep_alive

    async def exchange(self, request: bytes, receive: Callable[[int, bytes], None]) -> None:
        """Sends ``request``; calls ``receive`` with the status and each piece of the body (the last may be empty).

        Raises UnansweredError without a response, HTTPClientError for a response that is not HTTP or is cut off, and
        the exceptions of ``receive``.
        """
        if self._transport is None or self._transport.is_closing():
            raise UnansweredError("the connection is closed")
        self._answered, self._complete, self._receive = False, False, receive
        self._ended = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            await self._ended
        except BaseException:
            # The rest of the response must not be read as the next one.
            self.close()
            raise
        finally:
            self._receive = None

    def close(self) -> None:
        """Aborts the connection, without waiting for its end."""
        if self._transport is not None:
            self._transport.abort()

    async def closed(self) -> None:
        """Waits until the connection is closed."""
        if self._lost is not None:
            await self._lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio when the connection is established."""
        self._transport = cast(asyncio.Transport, transport)
        self._lost = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio with received data."""
        self._answered = True
        self._body.clear()
        try:
            self._parser.feed_data(data)
            if self._receive is not None:
                self._receive(self._parser.get_status_code(), b"".join(self._body))
        except httptools.HttpParserError as error:
            self._end(HTTPClientError(f"no HTTP response: {error}"))
        except Exception as error:  # noqa: BLE001 - the caller of `exchange` receives it
            self._end(error)
        else:
            if self._complete:
                self._end(None)

    def connection_lost(self, error: Exception | None) -> None:
        """Called by asyncio when the connection is closed, which ends a response without a length."""
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)
        if self._answered:
            self._end(None if error is None else HTTPClientError(f"the server cut off its response: {error}"))
        else:
            self._end(UnansweredError(f"the server closed the connection: {error}"))

    def on_body(self, body: bytes) -> None:
        """Called by the parser for a piece of the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Called by the parser at the end of the response."""
        self._complete = True
        # Read here, since the parser discards the response's state afterwards.
        self._keep_alive = bool(self._parser.should_keep_alive())

    def _end(self, error: Exception | None) -> None:
        if self._ended is None or self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)


@dataclass
class Client:
    """A client of one server; opens one connection per concurrent exchange and reuses it.

    ``base_url``: the API's root. ``headers``: sent with every request. Proxies are not used.
    """

    base_url: str
    headers: dict[str, str]
    idle: list[Connection] = field(default_factory=list)

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise HTTPClientError(f"{self.base_url}: must be a URL like http://127.0.0.1:8180/v1")
        self._tls = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port or (443 if self._tls else 80)
        self._path = parts.path.rstrip("/")
        self._head = "".join(f"{name}: {value}\r\n" for name, value in (self.headers | {"Host": parts.netloc}).items())

    async def exchange(self, method: str, path: str, body: bytes, receive: Callable[[int, bytes], None]) -> None:
        """Sends a request and receives its response, as ``Connection.exchange`` does; also raises OSError.

        A server may close an idle connection at any time; the client then sends the request again on another one.
        """
        head = f"{method} {self._path}/{path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n"
        if body:
            head += "Content-Type: application/json\r\n"
        request = head.encode("latin-1") + b"\r\n" + body
        connection = self._idle_connection()
        while connection is not None:
            try:
                await self._exchange_on(connection, request, receive)
            except UnansweredError:
                connection = self._idle_connection()
            else:
                return
        await self._exchange_on(await self._new_connection(), request, receive)

    async def _exchange_on(self, connection: Connection, request: bytes, receive: Callable[[int, bytes], None]) -> None:
        await connection.exchange(request, receive)
        if connection.reusable:
            self.idle.append(connection)
        else:
            connection.close()

    def _idle_connection(self) -> Connection | None:
        while self.idle:
            if (connection := self.idle.pop()).reusable:
                return connection
        return None

    async def _new_connection(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, self._host, self._port, ssl=self._tls or None)
        return connection

    async def close(self) -> None:
        """Closes the idle connections."""
        while self.idle:
            connection = self.idle.pop()
            connection.close()
            await connection.closed()
