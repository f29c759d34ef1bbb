"""Records of HTTP requests while they run, and the path prefix of a proxy."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from fastdeploy_lp.config.log_format import REQUEST_ID
from fastdeploy_lp.engine.client.work import SequenceTimes
from fastdeploy_lp.engine.errors import QueueFullError
from fastdeploy_lp.engine.prepare.input_processor import Prompt
from fastdeploy_lp.entrypoints.openai.errors import OperatorOnlyError
from fastdeploy_lp.entrypoints.openai.policy.rule import NO_RULE, Rule
from fastdeploy_lp.entrypoints.openai.protocol.request import GenerationRequest
from fastdeploy_lp.logits_processor.arguments.request import Imposed
from fastdeploy_lp.request.limits import MAX_ANSWER_BYTES


class RootPathMiddleware:
    """Sets the server's `root_path` for the inner layers; the proxy may or may not strip it from paths."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sets `root_path` in the scope, where frameworks read it."""
        scope["root_path"] = self._root_path
        await self._app(scope, receive, send)


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
        chosen = self.rule.of(body, self.key or self.client, self.request_id)
        self.variant = chosen.name if self.rule.name else None
        if self.brought and body.logits_processors:
            return msgspec.structs.replace(chosen.imposed, brought=dict(self.brought))
        return chosen.imposed

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
