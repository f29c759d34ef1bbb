"""Responses that are generated in the background, while no client waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from fastdeploy_lp.engine.client.generation import Generation
from fastdeploy_lp.entrypoints.openai.protocol.responses import Response


@dataclass(frozen=True)
class BackgroundResponse:
    """A running response, and the owner that may read it; `task` ends once it is stored."""

    owner: str
    response: Response
    generation: Generation
    task: asyncio.Task[None]


class BackgroundResponses:
    """All running responses; the engine's queue bounds their number."""

    def __init__(self) -> None:
        self._running: dict[str, BackgroundResponse] = {}

    def add(
        self, owner: str, response: Response, generation: Generation, finish: Coroutine[Any, Any, None]
    ) -> asyncio.Task[None]:
        """Runs `finish`, which waits for the generation and stores the response; returns its task."""
        task = asyncio.create_task(finish)
        task.add_done_callback(lambda _: self._running.pop(response.id))
        self._running[response.id] = BackgroundResponse(owner, response, generation, task)
        return task

    def get(self, response_id: str, owner: str) -> BackgroundResponse | None:
        """Returns a running response of this owner; None if there is none."""
        found = self._running.get(response_id)
        return found if found is not None and found.owner == owner else None

    async def cancel(self, response_id: str, owner: str) -> None:
        """Ends a response with what it has so far, and waits until it is stored; ignores others."""
        found = self.get(response_id, owner)
        if found is not None:
            found.generation.abort()
            await asyncio.wait([found.task])
