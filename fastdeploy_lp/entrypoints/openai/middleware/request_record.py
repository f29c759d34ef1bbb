"""Records of HTTP requests: their ids and work while they run, their log lines and metrics when they end."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Protocol

import msgspec
from fastapi import Request
from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fastdeploy_lp.config.log_format import REQUEST_ID
from fastdeploy_lp.engine.client.work import SequenceTimes
from fastdeploy_lp.engine.errors import QueueFullError
from fastdeploy_lp.engine.metrics import PREFIX, SECONDS
from fastdeploy_lp.engine.prepare.input_processor import Prompt
from fastdeploy_lp.engine.request_spans import TRACE_PARENT
from fastdeploy_lp.entrypoints.openai.errors import CLIENT_CLOSED_REQUEST, OperatorOnlyError, is_disconnect
from fastdeploy_lp.entrypoints.openai.listener.refusal_lines import RefusalLines
from fastdeploy_lp.entrypoints.openai.policy.rule import NO_RULE, Rule
from fastdeploy_lp.entrypoints.openai.protocol.anthropic.error import MESSAGES_PATHS
from fastdeploy_lp.entrypoints.openai.protocol.request import GenerationRequest
from fastdeploy_lp.entrypoints.playground.routes import FILES as PLAYGROUND_FILES
from fastdeploy_lp.logits_processor.arguments.request import NOTHING_IMPOSED, Imposed
from fastdeploy_lp.request.limits import MAX_ANSWER_BYTES

logger = logging.getLogger("fastdeploy_lp.requests")


def route_path(scope: Scope) -> str:
    """Returns the path for route matching, without the root path if it has that prefix."""
    path: str = scope["path"]
    root_path: str = scope.get("root_path", "")
    return path[len(root_path) :] if root_path and path.startswith(f"{root_path}/") else path


STATE_KEY = "record"
# Only characters that are safe in headers and log lines.
_VALID_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,128}")
_TRACE_PARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class EngineWork(Protocol):
    """A prompt that the engine processes: a `Generation` or a `Pooling`."""

    @property
    def prompt(self) -> Prompt:
        """The prompt as received."""

    @property
    def processors(self) -> Sequence[str]:
        """Names of the logits processors in use."""

    @property
    def times(self) -> Sequence[SequenceTimes]:
        """Timestamps, one entry per sequence."""

    @property
    def num_cached_tokens(self) -> int:
        """Number of prompt tokens found in the prefix cache."""

    @property
    def num_output_tokens(self) -> int:
        """Number of generated tokens so far."""

    @property
    def finish_reasons(self) -> Sequence[str | None]:
        """Finish reasons, one per sequence; None while it runs."""

    @property
    def finished(self) -> bool:
        """True if all work is done."""

    def abort(self) -> None:
        """Ends the work; callers receive the output so far, or an error if there is none."""


@dataclass(eq=False, slots=True)
class RequestRecord:
    """One HTTP request; `response_id` and `work` (one entry per prompt) are set once the engine accepts it.

    status: of the response, once it has begun. answered: True once the last byte was handed over. client: the index of
    its API key; its address if the server has no keys. key: a digest of its API key, empty without one. operator: True
    if it has an operator's key, or the server has no keys. heavy: True if its body is large, so that its work runs in
    threads. answer_bytes: see `RequestsInFlight.hold_answer`. rule: of the policy, for its client. variant: of the
    rule, once it is chosen. brought: SPECs by name of the logits processors that its client has uploaded.
    """

    request_id: str
    method: str
    path: str
    began: float = field(default_factory=time.monotonic)
    status: int | None = None
    answered: bool = False
    client: str = ""
    key: str = ""
    operator: bool = True
    heavy: bool = False
    response_id: str | None = None
    work: Sequence[EngineWork] = ()
    answer_bytes: int = 0
    rule: Rule = NO_RULE
    variant: str | None = None
    brought: Mapping[str, str] = field(default_factory=dict)

    def deadline(self, timeout: float | None) -> float | None:
        """Returns the deadline set by the body's `timeout`, on the monotonic clock; None for no limit."""
        return None if timeout is None else self.began + timeout

    def imposed_on(self, body: GenerationRequest) -> Imposed:
        """Returns the operator's part of the request, with the uploads of its client; records its rule's variant."""
        imposed = NOTHING_IMPOSED
        if self.rule is not NO_RULE:
            chosen = self.rule.of(body, self.key or self.client, self.request_id)
            self.variant, imposed = chosen.name if self.rule.name else None, chosen.imposed
        if self.brought and body.logits_processors:
            return msgspec.structs.replace(imposed, brought=dict(self.brought))
        return imposed

    @property
    def sees_secrets(self) -> bool:
        """True if the request has an operator's key, which the policy hides nothing from."""
        return self.operator and bool(self.key)

    @property
    def names(self) -> set[str | None]:
        """The ids by which a client can name this request."""
        return {self.request_id, self.response_id}

    def adopt(self, request_id: str | None) -> None:
        """Adopts the body's id, which takes precedence over the header's, if it is valid."""
        if request_id is not None and _VALID_ID.fullmatch(request_id):
            self.request_id = request_id
            REQUEST_ID.set(request_id)

    def admitted(self, response_id: str, work: Sequence[EngineWork]) -> None:
        """Records that the engine has accepted the request."""
        self.response_id, self.work = response_id, work


class RequestsInFlight:
    """Records of all requests that are not fully answered, or still run in the background."""

    def __init__(self) -> None:
        self._records: dict[int, RequestRecord] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def add(self, record: RequestRecord) -> None:
        """Adds a new request."""
        self._records[id(record)] = record

    def remove(self, record: RequestRecord) -> None:
        """Removes an answered request, once its task in the background is done."""
        task = self._tasks.pop(id(record), None)
        if task is None or task.done():
            del self._records[id(record)]
        else:
            task.add_done_callback(lambda _: self._records.pop(id(record)))

    def outlast(self, record: RequestRecord, task: asyncio.Task[None]) -> None:
        """Keeps a request until `task`, which continues after the answer, is done."""
        self._tasks[id(record)] = task

    def hold_answer(self, record: RequestRecord, num_bytes: int) -> None:
        """Reserves bytes for the numbers of a long answer, before they are computed and until the client has read them.

        Raises QueueFullError if the numbers of other requests leave no room.
        """
        held = sum(each.answer_bytes for each in self._records.values())
        if num_bytes and held and held + num_bytes > MAX_ANSWER_BYTES:
            raise QueueFullError(
                f"the server is busy: the answers in flight have {held} bytes of numbers, {num_bytes} more are asked "
                f"for, and it holds {MAX_ANSWER_BYTES}; try again later"
            )
        record.answer_bytes = num_bytes

    def running(self) -> Iterator[RequestRecord]:
        """Yields the requests that the engine processes."""
        yield from [record for record in self._records.values() if any(not each.finished for each in record.work)]


def record_of(request: Request) -> RequestRecord:
    """Returns the record of the request that a route answers."""
    record: RequestRecord = getattr(request.state, STATE_KEY)
    return record


def require_operator(request: Request, param: str | None = None) -> None:
    """Raises OperatorOnlyError, naming the field `param`, unless the request has operator rights."""
    if not record_of(request).operator:
        raise OperatorOnlyError(param)


def trace_parent(scope: Any) -> str | None:
    """Returns the header `traceparent` if it has the form of W3C Trace Context."""
    given = _header(scope, b"traceparent")
    return given if _TRACE_PARENT.fullmatch(given) else None


def _header(scope: Any, wanted: bytes) -> str:
    return str(next((value for name, value in scope["headers"] if name == wanted), b"").decode("latin-1"))


def new_record(scope: Any) -> RequestRecord:
    """Returns the record of a new request; its id is the client's `X-Request-Id` if valid."""
    given = _header(scope, b"x-request-id")
    request_id = given if _VALID_ID.fullmatch(given) else uuid.uuid4().hex
    address, _ = scope.get("client") or ("", 0)
    return RequestRecord(request_id, scope["method"], scope["path"], client=address)


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
            if record.path.endswith(MESSAGES_PATHS):
                own.append((b"request-id", name))
            message["headers"] = [*message.get("headers", ()), *own]
        elif not message.get("more_body", False):
            record.answered = True
        return send(message)

    return note


def _route(scope: Scope) -> str:
    """Returns the declared path, so that metrics have few labels; unknown paths share one label."""
    return getattr(scope.get("route"), "path_format", NO_ROUTE)
