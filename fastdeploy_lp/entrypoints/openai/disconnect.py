"""Waiting for answers as long as the client waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol, TypeVar

from fastapi import Request

CLIENT_CLOSED_REQUEST = 499

Output = TypeVar("Output", covariant=True)


class InFlight(Protocol[Output]):
    """A request on its way, be it generated or pooled."""

    async def result(self) -> Output:
        """The whole answer."""

    def close(self) -> None:
        """Nobody waits any more."""


async def results_unless_disconnected(in_flight: Sequence[InFlight[Output]], request: Request) -> list[Output] | None:
    """The answers; None, and the requests aborted, when the client goes first."""
    results = asyncio.ensure_future(_all_results(in_flight))
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait([results, gone], return_when=asyncio.FIRST_COMPLETED)
        return await results if results.done() else None
    finally:
        for task in (results, gone):
            task.cancel()
        await asyncio.gather(results, gone, return_exceptions=True)
        for each in in_flight:
            each.close()


async def _all_results(in_flight: Sequence[InFlight[Output]]) -> list[Output]:
    return list(await asyncio.gather(*(each.result() for each in in_flight)))


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
