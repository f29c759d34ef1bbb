"""Answers the requests of an input file, with bounded concurrency."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp

from fastdeploy_lp.engine.errors import EngineDeadError
from fastdeploy_lp.entrypoints.batch.files import BadLineError, OutputFile, RequestLine, read_line
from fastdeploy_lp.entrypoints.concurrently import for_each


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


BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass
class Tally:
    """Counts of processed lines."""

    completed: int = 0
    failed: int = 0
    skipped: int = 0


class BatchRunner:
    """Sends requests to an application and writes one output line for each, also for errors."""

    def __init__(self, app: ASGIApp, output: OutputFile, progress: Any) -> None:
        self._app = app
        self._output = output
        self._progress = progress
        self._seen: set[str] = set()
        self.tally = Tally()

    async def run(self, lines: Iterable[bytes], concurrency: int) -> None:
        """Runs until every line has its answer; raises EngineDeadError without writing lines for the lost requests."""
        await for_each(self._requests(lines), self._answer, concurrency)

    def _requests(self, lines: Iterable[bytes]) -> Iterator[RequestLine]:
        """Yields the requests without an answer; answers invalid lines with an error."""
        for number, line in numbered(lines):
            try:
                request = read_line(line, number)
                if request.custom_id in self._seen:
                    raise BadLineError(None, f"line {number}: custom_id: {request.custom_id!r} has come before")
            except BadLineError as error:
                self._refuse(error)
            else:
                self._seen.add(request.custom_id)
                if not self._skip(request.custom_id):
                    yield request

    def _refuse(self, error: BadLineError) -> None:
        if error.custom_id is not None:
            self._seen.add(error.custom_id)
        if not self._skip(error.custom_id, str(error)):
            self.tally.failed += 1
            self._write(error.custom_id, None, {"code": "invalid_request", "message": str(error)})

    def _skip(self, custom_id: str | None, message: str = "") -> bool:
        if not self._output.has(custom_id, message):
            return False
        self.tally.skipped += 1
        self._progress.update(1)
        return True

    async def _answer(self, request: RequestLine) -> None:
        answer = await exchange(self._app, request.url, json.dumps(request.body).encode())
        body = json.loads(answer.body)
        _require_engine(answer, body)
        request_id = answer.headers.get("x-request-id") or body.get("id") or uuid.uuid4().hex
        if answer.status == 200:
            self.tally.completed += 1
        else:
            self.tally.failed += 1
        self._write(request.custom_id, {"status_code": answer.status, "request_id": request_id, "body": body}, None)

    def _write(self, custom_id: str | None, response: dict[str, Any] | None, error: dict[str, str] | None) -> None:
        name = f"batch_req_{uuid.uuid4().hex}"
        self._output.write({"id": name, "custom_id": custom_id, "response": response, "error": error})
        self._progress.update(1)


def numbered(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yields lines that are not blank, each with its line number, from 1."""
    for number, line in enumerate(lines, 1):
        content = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
        if content.strip():
            yield number, content


def _require_engine(answer: Answer, body: dict[str, Any]) -> None:
    error = body.get("error")
    if answer.status == 503 and error and error.get("code") == "engine_down":
        raise EngineDeadError(error["message"])
