"""Metrics on a separate port."""

from __future__ import annotations

import asyncio
import socket

from fastapi import FastAPI
from starlette.types import ASGIApp

from fastdeploy_lp.engine.engine import Engine
from fastdeploy_lp.entrypoints.openai import errors
from fastdeploy_lp.entrypoints.openai.http_server import HTTPServer
from fastdeploy_lp.entrypoints.openai.routes.server import metrics_route


def metrics_app(engine: Engine) -> ASGIApp:
    """Returns an application that answers GET /metrics only."""
    app = FastAPI(openapi_url=None)
    errors.install(app)
    app.include_router(metrics_route(engine))
    return app


class MetricsServer:
    """Server on `listener` from `start` to `stop`; shares the API server's event loop and connection bounds."""

    def __init__(self, server: HTTPServer, listener: socket.socket) -> None:
        self._server = server
        self._listener = listener
        self._serving: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts serving."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))

    async def stop(self) -> None:
        """Stops at once: one lost scrape does no harm."""
        self._server.end(at_once=True)
        if self._serving is not None:
            await asyncio.gather(self._serving, return_exceptions=True)
