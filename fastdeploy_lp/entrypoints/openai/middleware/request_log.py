"""Middleware that assigns an id to every request, counts it, and logs one line on completion."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fastdeploy_lp.entrypoints.openai.disconnect import CLIENT_CLOSED_REQUEST, is_disconnect
from fastdeploy_lp.entrypoints.openai.middleware.http_metrics import HttpMetrics
from fastdeploy_lp.entrypoints.openai.middleware.request_line import fields_of
from fastdeploy_lp.entrypoints.openai.middleware.request_record import (
    STATE_KEY,
    RequestRecord,
    RequestsInFlight,
    new_record,
)
from fastdeploy_lp.entrypoints.openai.refusal_lines import RefusalLines
from fastdeploy_lp.entrypoints.playground.routes import FILES as PLAYGROUND_FILES
from fastdeploy_lp.log_format import REQUEST_ID

logger = logging.getLogger("fastdeploy_lp.requests")

# An answer may contain a client's text; browsers must not interpret it as a page.
NO_SNIFFING = (b"x-content-type-options", b"nosniff")
NO_ROUTE = "unknown"
# Paths that monitoring requests every few seconds.
PROBES = {"/health", "/health/live", "/health/ready", "/ping", "/metrics", "/load"}
# A page, which is logged itself, loads many of these files.
QUIET = {*PROBES, PLAYGROUND_FILES}


class RequestLogMiddleware:
    """The outermost layer; `log_prompts` adds the prompts' text to the lines."""

    def __init__(
        self, app: ASGIApp, in_flight: RequestsInFlight, metrics: HttpMetrics, *, log_prompts: bool = False
    ) -> None:
        self._app = app
        self._in_flight = in_flight
        self._metrics = metrics
        self._log_prompts = log_prompts
        self._refusals = RefusalLines()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the application; drops exceptions after the answer, which are already logged."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = new_record(scope)
        scope.setdefault("state", {})[STATE_KEY] = record
        token = REQUEST_ID.set(record.request_id)
        self._in_flight.add(record)
        try:
            await self._app(scope, receive, _noting(record, send))
        except Exception as error:
            if not record.answered and not is_disconnect(error):
                raise
        finally:
            self._in_flight.remove(record)
            self._finish(record, _route(scope))
            REQUEST_ID.reset(token)

    def _finish(self, record: RequestRecord, route: str) -> None:
        seconds = time.monotonic() - record.began
        status = (record.status or 500) if record.answered else CLIENT_CLOSED_REQUEST
        self._metrics.answered(record.method, route, status, seconds)
        level = logging.DEBUG if route in QUIET else logging.INFO
        if logger.isEnabledFor(level) and (not _is_refused(record, status) or self._refusals.permits(status)):
            fields = fields_of(record, route, status, seconds, with_prompts=self._log_prompts)
            logger.log(level, "request", extra={"fields": fields})


def _is_refused(record: RequestRecord, status: int) -> bool:
    """Returns True if the request failed before it reached the engine: its client can repeat it at almost no cost."""
    return status >= HTTPStatus.BAD_REQUEST and not record.work


def _noting(record: RequestRecord, send: Send) -> Send:
    """Returns `send` that records the response's start and end; no extra coroutine, since every token passes it."""

    def note(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            record.status = message["status"]
            own = ((b"x-request-id", record.request_id.encode()), NO_SNIFFING)
            message["headers"] = [*message.get("headers", ()), *own]
        elif not message.get("more_body", False):
            record.answered = True
        return send(message)

    return note


def _route(scope: Scope) -> str:
    """Returns the declared path, so that metrics have few labels; unknown paths share one label."""
    return getattr(scope.get("route"), "path_format", NO_ROUTE)
