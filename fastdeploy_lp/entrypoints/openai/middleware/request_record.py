"""What the server knows of an HTTP request while it runs, and the requests that run."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import Request

from fastdeploy_lp.engine.input_processor import Prompt
from fastdeploy_lp.engine.sequence_times import SequenceTimes
from fastdeploy_lp.log_format import REQUEST_ID

STATE_KEY = "record"
# Nothing that could break a header or a log line.
_VALID_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,128}")


class EngineWork(Protocol):
    """A prompt that the engine works on, be it continued (`Generation`) or pooled (`Pooling`)."""

    @property
    def prompt(self) -> Prompt:
        """What came."""

    @property
    def processors(self) -> Sequence[str]:
        """The logits processors in use, by name."""

    @property
    def times(self) -> Sequence[SequenceTimes]:
        """One entry a sequence."""

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the prompt that were found in the prefix cache."""

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens so far."""

    @property
    def finish_reasons(self) -> Sequence[str | None]:
        """One a sequence, None while it runs."""

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do."""

    def abort(self) -> None:
        """End it; who waits gets what there is so far, or an error when there is nothing."""


@dataclass(eq=False, slots=True)
class RequestRecord:
    """One HTTP request; `response_id` and `work`, one entry a prompt, are set once the engine has taken it.

    status: of the response, once it has begun; `answered` once its last byte was handed over. client: which of the
    API keys it brought, by its place; where there are none, its address. heavy: its body is large, so that the work
    that it causes belongs into threads.
    """

    request_id: str
    method: str
    path: str
    began: float = field(default_factory=time.monotonic)
    status: int | None = None
    answered: bool = False
    client: str = ""
    heavy: bool = False
    response_id: str | None = None
    work: Sequence[EngineWork] = ()

    def deadline(self, timeout: float | None) -> float | None:
        """When the time is over that the body gives the request, on the monotonic clock; None for never."""
        return None if timeout is None else self.began + timeout

    @property
    def names(self) -> set[str | None]:
        """The ids under which a client knows this request."""
        return {self.request_id, self.response_id}

    def adopt(self, request_id: str | None) -> None:
        """Take the id that the body gives, which goes before the header's, unless it is unfit for one."""
        if request_id is not None and _VALID_ID.fullmatch(request_id):
            self.request_id = request_id
            REQUEST_ID.set(request_id)

    def admitted(self, response_id: str, work: Sequence[EngineWork]) -> None:
        """The engine has taken the request."""
        self.response_id, self.work = response_id, work


class RequestsInFlight:
    """The records of all requests that have not been answered to the end."""

    def __init__(self) -> None:
        self._records: dict[int, RequestRecord] = {}

    def add(self, record: RequestRecord) -> None:
        """A request has come."""
        self._records[id(record)] = record

    def remove(self, record: RequestRecord) -> None:
        """It is over."""
        del self._records[id(record)]

    def running(self) -> Iterator[RequestRecord]:
        """Those that the engine works on."""
        yield from [record for record in self._records.values() if any(not each.finished for each in record.work)]


def record_of(request: Request) -> RequestRecord:
    """The record of the request that a route answers."""
    record: RequestRecord = getattr(request.state, STATE_KEY)
    return record


def new_record(scope: Any) -> RequestRecord:
    """The record of a request that has just come; its id is the client's `X-Request-Id` if that is fit for one."""
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"").decode("latin-1")
    request_id = given if _VALID_ID.fullmatch(given) else uuid.uuid4().hex
    address, _ = scope.get("client") or ("", 0)
    return RequestRecord(request_id, scope["method"], scope["path"], client=address)
