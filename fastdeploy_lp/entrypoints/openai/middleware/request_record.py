"""What the server knows of an HTTP request while it runs, and the requests that run."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from fastdeploy_lp.engine.generation import Generation
from fastdeploy_lp.log_format import REQUEST_ID

STATE_KEY = "record"
# Nothing that could break a header or a log line.
_VALID_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,128}")


@dataclass(eq=False, slots=True)
class RequestRecord:
    """One HTTP request; `response_id` and `generations` are set once the engine has taken it.

    status: of the response, once it has begun; `answered` once its last byte was handed over.
    """

    request_id: str
    method: str
    path: str
    began: float = field(default_factory=time.monotonic)
    status: int | None = None
    answered: bool = False
    response_id: str | None = None
    generations: Sequence[Generation] = ()

    @property
    def names(self) -> set[str | None]:
        """The ids under which a client knows this request."""
        return {self.request_id, self.response_id}

    def adopt(self, request_id: str | None) -> None:
        """Take the id that the body gives, which goes before the header's, unless it is unfit for one."""
        if request_id is not None and _VALID_ID.fullmatch(request_id):
            self.request_id = request_id
            REQUEST_ID.set(request_id)

    def admitted(self, response_id: str, generations: Sequence[Generation]) -> None:
        """The engine has taken the request."""
        self.response_id, self.generations = response_id, generations


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

    def generating(self) -> Iterator[RequestRecord]:
        """Those that the engine works on."""
        yield from [
            record for record in self._records.values() if any(not each.finished for each in record.generations)
        ]


def record_of(request: Request) -> RequestRecord:
    """The record of the request that a route answers."""
    record: RequestRecord = getattr(request.state, STATE_KEY)
    return record


def new_record(scope: Any) -> RequestRecord:
    """The record of a request that has just come; its id is the client's `X-Request-Id` if that is fit for one."""
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"").decode("latin-1")
    request_id = given if _VALID_ID.fullmatch(given) else uuid.uuid4().hex
    return RequestRecord(request_id, scope["method"], scope["path"])
