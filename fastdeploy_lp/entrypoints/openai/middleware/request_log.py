"""Middleware that assigns an id to every request, counts it, and logs one line on completion; and its metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Sequence
from http import HTTPStatus

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fastdeploy_lp.config.log_format import REQUEST_ID
from fastdeploy_lp.engine.metrics import PREFIX, SECONDS
from fastdeploy_lp.engine.request_spans import TRACE_PARENT
from fastdeploy_lp.entrypoints.openai.disconnect import CLIENT_CLOSED_REQUEST, is_disconnect
from fastdeploy_lp.entrypoints.openai.listener.refusal_lines import RefusalLines
from fastdeploy_lp.entrypoints.openai.middleware.request_record import (
    STATE_KEY,
    EngineWork,
    RequestRecord,
    RequestsInFlight,
    new_record,
    trace_parent,
)
from fastdeploy_lp.entrypoints.openai.protocol.anthropic.error import is_messages_path
from fastdeploy_lp.entrypoints.playground.routes import FILES as PLAYGROUND_FILES

# Clients may send any method name; bounds the number of labels.
METHODS = {"GET", "POST", "OPTIONS", "HEAD", "PUT", "DELETE", "PATCH"}


class HttpMetrics:
    """Counts requests by method, route and status, in the engine's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            f"{PREFIX}http_requests",
            "HTTP requests by method, route and status; 499: the client went before the answer",
            ["method", "route", "status"],
            registry=registry,
        )
        self._by_rule = Counter(
            f"{PREFIX}policy_requests",
            "Answered requests by rule of --policy and variant of its experiment",
            ["rule", "variant"],
            registry=registry,
        )
        self._seconds = Histogram(
            f"{PREFIX}http_request_duration_seconds",
            "From a request's arrival to its answer's last byte",
            ["route"],
            registry=registry,
            buckets=SECONDS,
        )

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Counts a finished request."""
        self._requests.labels(method if method in METHODS else "other", route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def ruled(self, rule: str, variant: str) -> None:
        """Counts a request to which a rule of the policy applied."""
        self._by_rule.labels(rule, variant).inc()


Fields = dict[str, object]
ABORTED = "abort"


def fields_of(record: RequestRecord, route: str, status: int, seconds: float, *, with_prompts: bool) -> Fields:
    """Returns the fields of a request's log line; engine fields only for requests that reached the engine.

    Times are in seconds: `ttft` until the first token of any completion, `queue` until the first sequence got a slot.
    """
    fields: Fields = {
        "request_id": record.request_id,
        "method": record.method,
        "path": record.path,
        "route": route,
        "status": status,
        "seconds": round(seconds, 6),
    }
    if record.work:
        fields |= _of_work(record.work)
        fields["response_id"] = record.response_id
    if record.variant is not None:
        fields["policy"] = f"{record.rule.name}/{record.variant}"
    if with_prompts and record.work:
        fields["prompts"] = [_prompt(each) for each in record.work]
    return fields


def _of_work(work: Sequence[EngineWork]) -> Fields:
    times = [sequence for each in work for sequence in each.times]
    first_tokens = [each.time_to_first_token for each in times if each.time_to_first_token is not None]
    queues = [each.queue for each in times if each.queue is not None]
    return {
        "prompt_tokens": sum(len(each.prompt.token_ids) for each in work),
        "output_tokens": sum(each.num_output_tokens for each in work),
        "cached_tokens": sum(each.num_cached_tokens for each in work),
        "ttft": round(min(first_tokens), 6) if first_tokens else None,
        "queue": round(min(queues), 6) if queues else None,
        "processors": list(dict.fromkeys(name for each in work for name in each.processors)),
        "finish_reasons": [reason or ABORTED for each in work for reason in each.finish_reasons],
    }


def _prompt(work: EngineWork) -> str:
    """Returns the prompt's text, or its token ids if it has no text."""
    prompt = work.prompt
    return prompt.text if prompt.text is not None else " ".join(map(str, prompt.token_ids))


logger = logging.getLogger("fastdeploy_lp.requests")

# An answer may contain a client's text; browsers must not interpret it as a page.
NO_SNIFFING = (b"x-content-type-options", b"nosniff")
NO_ROUTE = "unknown"
# Paths that monitoring requests every few seconds.
PROBES = {"/health", "/health/live", "/health/ready", "/ping", "/metrics", "/load"}
# A page, which is logged itself, loads many of these files.
QUIET = {*PROBES, PLAYGROUND_FILES}


class RequestLogMiddleware:
    """The outermost layer; logs at the level debug unless `log_requests`. `log_prompts` adds the prompts' text."""

    def __init__(
        self,
        app: ASGIApp,
        in_flight: RequestsInFlight,
        metrics: HttpMetrics,
        *,
        log_requests: bool,
        log_prompts: bool = False,
    ) -> None:
        self._app = app
        self._in_flight = in_flight
        self._metrics = metrics
        self._level = logging.INFO if log_requests else logging.DEBUG
        self._log_prompts = log_prompts
        self._refusals = RefusalLines()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the application; drops exceptions after the answer, which are already logged."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = new_record(scope)
        scope.setdefault("state", {})[STATE_KEY] = record
        token, span_token = REQUEST_ID.set(record.request_id), TRACE_PARENT.set(trace_parent(scope))
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
            TRACE_PARENT.reset(span_token)

    def _finish(self, record: RequestRecord, route: str) -> None:
        seconds = time.monotonic() - record.began
        status = (record.status or 500) if record.answered else CLIENT_CLOSED_REQUEST
        self._metrics.answered(record.method, route, status, seconds)
        if record.variant is not None:
            self._metrics.ruled(record.rule.name, record.variant)
        level = logging.DEBUG if route in QUIET else self._level
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
            name = record.request_id.encode()
            own = [(b"x-request-id", name), NO_SNIFFING]
            if is_messages_path(record.path):
                own.append((b"request-id", name))
            message["headers"] = [*message.get("headers", ()), *own]
        elif not message.get("more_body", False):
            record.answered = True
        return send(message)

    return note


def _route(scope: Scope) -> str:
    """Returns the declared path, so that metrics have few labels; unknown paths share one label."""
    return getattr(scope.get("route"), "path_format", NO_ROUTE)
