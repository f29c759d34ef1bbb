"""Waiting for answers while the client is connected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from fastdeploy_lp.engine.client.engine_requests import Pace
from fastdeploy_lp.engine.errors import RequestTimeoutError

CLIENT_CLOSED_REQUEST = 499
CLOSED_HANDLE = "the handler is closed"

Output = TypeVar("Output", covariant=True)
Result = TypeVar("Result")


class InFlight(Protocol[Output]):
    """A running request of generation or pooling."""

    async def result(self) -> Output:
        """Returns the whole answer."""

    def close(self) -> None:
        """Releases the request: no caller waits for its result."""


def is_disconnect(error: Exception) -> bool:
    """Returns True if a request failed because its connection is closed.

    uvicorn closes a connection when the bytes after a request are not HTTP, and still answers the request; uvloop then
    raises a plain RuntimeError.
    """
    return isinstance(error, ClientDisconnect) or (isinstance(error, RuntimeError) and CLOSED_HANDLE in str(error))


async def results_unless_disconnected(in_flight: Sequence[InFlight[Output]], request: Request) -> list[Output] | None:
    """Returns the answers; aborts the requests and returns None if the client disconnects first."""
    try:
        return await unless_disconnected(_all_results(in_flight), request.receive)
    finally:
        for each in in_flight:
            each.close()


async def _all_results(in_flight: Sequence[InFlight[Output]]) -> list[Output]:
    tasks, pace = [], Pace()
    try:
        for each in in_flight:
            tasks.append(asyncio.ensure_future(each.result()))
            await pace.rest()
        return list(await asyncio.gather(*tasks))
    finally:
        # If one fails, no caller waits for the others.
        if not all(task.done() for task in tasks):
            for task in tasks:
                task.cancel()
                await pace.rest()
            await asyncio.gather(*tasks, return_exceptions=True)


async def unless_disconnected(work: Coroutine[Any, Any, Result], receive: Receive) -> Result | None:
    """Returns the result of `work`; cancels it and returns None if the client disconnects first."""
    result = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((result, gone), return_when=asyncio.FIRST_COMPLETED)
        return await result if result.done() else None
    finally:
        for task in (result, gone):
            task.cancel()
        await asyncio.gather(result, gone, return_exceptions=True)


async def while_connected(work: Coroutine[Any, Any, Result], receive: Receive, deadline: float | None = None) -> Result:
    """Returns the result of `work`, which is cancelled if the client disconnects or the deadline passes.

    deadline: on the monotonic clock, None for no limit. Raises ClientDisconnect and RequestTimeoutError.
    """
    result = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        seconds = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        await asyncio.wait((result, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if result.done():
            return await result
        if gone.done():
            raise ClientDisconnect
        raise RequestTimeoutError("timeout: the time of the request is over, and it has not begun")
    finally:
        for task in (result, gone):
            task.cancel()
        await asyncio.gather(result, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
