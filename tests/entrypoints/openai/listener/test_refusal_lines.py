"""Refused requests cannot fill the log: their lines have a rate, and those left out are counted."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from support.bounded_server import SECONDS, answer, exchange, serving

from fastdeploy_lp.entrypoints.openai.listener import refusal_lines
from fastdeploy_lp.entrypoints.openai.listener.refusal_lines import BURST, LINES_PER_SECOND, RefusalLines
from fastdeploy_lp.entrypoints.openai.middleware.request_record import (
    HttpMetrics,
    RequestLogMiddleware,
    RequestsInFlight,
)

MANY = 3 * BURST
SUMMARY = "lines of refused requests were left out"


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts are told at once, and time does not stand still for a line meanwhile."""
    monkeypatch.setattr(refusal_lines, "SUMMARY_SECONDS", 0.01)
    monkeypatch.setattr(refusal_lines, "LINES_PER_SECOND", 0.0)


def fields(record: logging.LogRecord) -> dict[str, Any]:
    found: dict[str, Any] = record.__dict__["fields"]
    return found


def told(caplog: pytest.LogCaptureFixture, message: str) -> list[dict[str, Any]]:
    return [fields(record) for record in caplog.records if record.message == message]


async def left_out(caplog: pytest.LogCaptureFixture, count: int) -> set[str]:
    """The statuses of so many requests without a line, when all are counted."""
    while sum(each["left_out"] for each in told(caplog, SUMMARY)) < count:
        await asyncio.sleep(0.01)
    return {status.partition(":")[0] for each in told(caplog, SUMMARY) for status in each["by_status"]}


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("status", [401, 404, 429])
def test_refused_requests(status: int, caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, 200 if scope["path"] == "/served" else status)

    async def send(message: Any) -> None:
        """To nobody."""

    async def run() -> set[str]:
        layer = RequestLogMiddleware(app, RequestsInFlight(), HttpMetrics(CollectorRegistry()), log_requests=True)
        for path in ["/" + "a" * 60_000] * MANY + ["/served"]:
            await layer({"type": "http", "method": "GET", "path": path, "headers": []}, send, send)
        return await asyncio.wait_for(left_out(caplog, MANY - BURST), SECONDS)

    with caplog.at_level(logging.INFO, "fastdeploy_lp"):
        statuses = asyncio.run(run())
    lines = told(caplog, "request")
    assert [line["status"] for line in lines] == [status] * BURST + [200]
    assert statuses == {str(status)}


@pytest.mark.usefixtures("soon")
def test_what_is_no_request_at_all(caplog: pytest.LogCaptureFixture) -> None:
    async def never(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("called")

    async def run() -> set[str]:
        async with serving(never) as port:
            for _ in range(BURST + 20):
                await exchange(port, b"no HTTP\r\n\r\n")
            return await asyncio.wait_for(left_out(caplog, 20), SECONDS)

    with caplog.at_level(logging.INFO, "fastdeploy_lp"):
        statuses = asyncio.run(run())
    lines = told(caplog, "refused before it was a request")
    assert [line["status"] for line in lines] == [400] * BURST
    assert lines[0]["client"] == "127.0.0.1"
    assert statuses == {"400"}
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


def test_lines_come_back_with_time() -> None:
    now = [0.0]

    async def run() -> list[int]:
        lines = RefusalLines(lambda: now[0])
        permitted = []
        for seconds in (0.0, 1.0, 1000.0):
            now[0] += seconds
            permitted.append(sum(lines.permits(404) for _ in range(MANY)))
        return permitted

    assert asyncio.run(run()) == [BURST, LINES_PER_SECOND, BURST]
