"""One engine with the server's application, as an actor of Ray Serve."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

from fastdeploy_lp.engine.client.data_parallel import make_engine
from fastdeploy_lp.entrypoints.declare import declare_engine
from fastdeploy_lp.entrypoints.openai.app import build_app
from fastdeploy_lp.entrypoints.openai.server_args import ServerArgs
from fastdeploy_lp.entrypoints.ray_serve.prefix_router import ForwardedRequest
from fastdeploy_lp.startup.engine_args import EngineArgs

logger = logging.getLogger(__name__)

Message = MutableMapping[str, Any]


class EngineReplica:
    """A replica that answers requests as the HTTP server does; Ray Serve calls its methods."""

    async def __init__(self, engine_args: EngineArgs, server_args: ServerArgs) -> None:  # type: ignore[misc]
        setup = await asyncio.to_thread(declare_engine, engine_args.of_a_server(), progress=False)
        self._engine = make_engine(
            setup.fd_config, setup.declared, setup.stat_loggers, fair_queue=server_args.fair_queue
        )
        self._app = build_app(self._engine, server_args, setup.io_processor)
        try:
            await self._engine.start()
        except BaseException:
            await self._engine.shutdown()
            raise

    async def answer(self, request: ForwardedRequest) -> AsyncGenerator[list[Message], None]:
        """Yields the application's messages as they arrive; batches available messages into one list."""
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        gone = asyncio.Event()
        body = [{"type": "http.request", "body": request.body, "more_body": False}]

        async def receive() -> Message:
            if body:
                return body.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            messages.put_nowait(message)

        running = asyncio.ensure_future(self._app(dict(request.scope), receive, send))
        running.add_done_callback(lambda _: messages.put_nowait(None))
        answered = False
        try:
            while True:
                ready = [await messages.get()]
                while not messages.empty():
                    ready.append(messages.get_nowait())
                told = [each for each in ready if each is not None]
                if told:
                    answered = True
                    yield told
                if None in ready:
                    break
        finally:
            gone.set()
            running.cancel()
            (outcome,) = await asyncio.gather(running, return_exceptions=True)
        if isinstance(outcome, Exception):
            if not answered:
                raise outcome
            # The client received status 500; the application raises the exception again for the log.
            logger.error("a request failed", exc_info=outcome)

    async def check_health(self) -> None:
        """Raises if the engine accepts no more requests; Ray Serve then starts another replica."""
        self._engine.require_alive()

    async def __del__(self) -> None:
        """Ends the engine; Ray Serve calls it when the replica's requests have ended."""
        if hasattr(self, "_engine"):
            await self._engine.shutdown()
