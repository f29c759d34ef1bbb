"""The server's connections around an application of a test's own, without an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from fastdeploy_lp.entrypoints.openai.listener.bounds import ConnectionBounds
from fastdeploy_lp.entrypoints.openai.listener.connections import connection_class

SECONDS = 30.0


@asynccontextmanager
async def serving(app: Any, bounds: ConnectionBounds | None = None) -> AsyncIterator[int]:
    """The port of 127.0.0.1 that the application answers on."""
    protocol = connection_class(bounds or ConnectionBounds(100, 100))
    config = uvicorn.Config(app, http=protocol, lifespan="off", log_config=None, access_log=False)
    config.load()
    listener = await asyncio.get_running_loop().create_server(
        lambda: protocol(config=config, server_state=ServerState(), app_state={}), "127.0.0.1", 0
    )
    async with listener:
        yield listener.sockets[0].getsockname()[1]


async def exchange(port: int, sent: bytes, *, half_close: bool = False) -> bytes:
    """Everything that the server sends until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    if half_close:
        writer.write_eof()
    try:
        return await asyncio.wait_for(reader.read(), SECONDS)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def answer(send: Any, status: int = 200, body: bytes = b"") -> None:
    """A whole answer of an application."""
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
