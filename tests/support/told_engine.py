"""The server's application in this process, with a worker whose steps the test writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from fastdeploy_lp.config import ChatConfig, SchedulerConfig
from fastdeploy_lp.engine.client.engine_client import EngineClient
from fastdeploy_lp.engine.client.supervisor import WorkerHandle
from fastdeploy_lp.entrypoints.openai.app import build_app
from fastdeploy_lp.entrypoints.openai.listener.bounds import connection_bounds
from fastdeploy_lp.entrypoints.openai.listener.connections import Connection, connection_class
from fastdeploy_lp.entrypoints.openai.server_args import ServerArgs
from fastdeploy_lp.messages import AbortRequests, AddRequest, FromWorker, SequenceStep, StepOutputs, TokenLogprobs
from fastdeploy_lp.stats import SchedulerStats
from support.idle_engine import IdleWorker, config_in

TEMPLATE = Path(__file__).parents[1] / "data" / "chatml_tools.jinja"
# Enough turns of the event loop for a step to reach the streams of its sequences.
TURNS = 30


class ToldWorker(IdleWorker):
    """Sends the steps that it is told."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: asyncio.Queue[StepOutputs] = asyncio.Queue()

    @property
    def sequences(self) -> list[AddRequest]:
        """What runs, in the order of arrival."""
        return [message for message in self.sent if isinstance(message, AddRequest)]

    @property
    def aborted(self) -> list[str]:
        """The sequences that were aborted."""
        return [name for message in self.sent if isinstance(message, AbortRequests) for name in message.request_ids]

    async def receive(self) -> FromWorker | None:
        return await self._steps.get()

    async def step(self, *steps: SequenceStep, turns: int = TURNS) -> None:
        """Sends one message, and waits until the server has handled it."""
        self._steps.put_nowait(StepOutputs(list(steps), SchedulerStats(len(steps))))
        for _ in range(turns):
            await asyncio.sleep(0)

    async def wait_for(self, count: int) -> list[AddRequest]:
        """Waits until so many sequences have arrived; returns them."""
        async with asyncio.timeout(30):
            while len(self.sequences) < count:
                await asyncio.sleep(0.001)
        return self.sequences


class Told:
    """A running application, its engine and worker."""

    def __init__(self, folder: Path, name: str, scheduler: SchedulerConfig) -> None:
        chat = ChatConfig(TEMPLATE.read_text(), tool_call_parser="hermes", reasoning_parser="qwen3")
        config = config_in(folder, scheduler, chat, name)
        self.worker = ToldWorker()
        self.engine = EngineClient(config, [], lambda: cast(WorkerHandle, self.worker))
        self.app: ASGIApp = build_app(self.engine, ServerArgs(api_key=[]))

    def tokens(self, text: str) -> list[int]:
        """The tokens of a text, a token for each few letters."""
        return self.engine.tokenizer.encode(text, add_special_tokens=False)


def step_of(name: str, tokens: Sequence[int], place: int, *, logprobs: bool = False) -> SequenceStep:
    """The step in which a sequence gets the `place`-th token; the last one ends it."""
    token = tokens[place]
    step = SequenceStep(name, [token], "length" if place == len(tokens) - 1 else None)
    if not place:
        step.num_cached_tokens, step.scheduled_at = 3, 0.0
    if logprobs:
        step.logprobs = [TokenLogprobs([token, token + 1], [-0.5 - place, -2.0], 1)]
    return step


@asynccontextmanager
async def told(folder: Path, name: str = "tiny-llama", stream_interval: int = 1) -> AsyncIterator[Told]:
    """The application, started; `name` is the model's."""
    running = Told(folder, name, SchedulerConfig(64, 64, stream_interval=stream_interval))
    await running.engine.start()
    try:
        yield running
    finally:
        await running.engine.shutdown()


@asynccontextmanager
async def listening(app: ASGIApp, transports: list[asyncio.Transport] | None = None) -> AsyncIterator[int]:
    """The application on this server's own connections, whose transports are noted; yields the port."""
    protocol = connection_class(connection_bounds(None, None))
    if transports is not None:
        protocol = _noting(protocol, transports)
    config = uvicorn.Config(app, port=0, log_level="warning", lifespan="off", http=protocol, ws="none")
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    serving = asyncio.create_task(server.serve())
    try:
        while not server.started:
            await asyncio.sleep(0.001)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        await serving


def _noting(protocol: type[Connection], transports: list[asyncio.Transport]) -> type[Connection]:
    class Noting(protocol):  # type: ignore[misc, valid-type]
        def connection_made(self, transport: asyncio.Transport) -> None:
            transports.append(transport)
            super().connection_made(transport)

    return Noting
