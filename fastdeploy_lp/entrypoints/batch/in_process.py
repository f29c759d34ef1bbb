"""Exchanges with an ASGI application in this process: the server's checks and answers, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp


@dataclass
class Answer:
    """A response; header names are in lower case."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


async def exchange(app: ASGIApp, path: str, body: bytes) -> Answer:
    """POSTs a JSON body and returns the response; cancellation acts as a client's disconnect."""
    answer = Answer()
    parts: list[bytes] = []
    request: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> MutableMapping[str, Any]:
        if not request:
            await asyncio.Event().wait()
        return request.pop()

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]
            }
        else:
            parts.append(message.get("body", b""))

    headers = {"host": "in-process", "content-type": "application/json", "content-length": str(len(body))}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": None,
        "server": None,
    }
    try:
        await app(scope, receive, send)
    except Exception:  # after a response with status 500, the application raises the exception again for the log
        if not answer.status:
            raise
    answer.body = b"".join(parts)
    return answer
