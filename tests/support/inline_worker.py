"""A real engine core as the worker of an engine client in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.engine.client.engine_client import EngineClient
from fastdeploy_lp.engine.client.supervisor import WorkerHandle
from fastdeploy_lp.engine.prepare.preparation import RequestPreparation
from fastdeploy_lp.logits_processor import DeclaredProcessor, LogitsProcessorChain
from fastdeploy_lp.logits_processor.chain.calls import Culprit
from fastdeploy_lp.logits_processor.quarantine import Quarantine
from fastdeploy_lp.messages import (
    AbortRequests,
    AddRequest,
    FromWorker,
    StepOutputs,
    ToWorker,
    WorkerReady,
    decoder,
    encode,
)
from fastdeploy_lp.worker.engine_core import EngineCore


class InlineWorker:
    """Steps an engine core whenever its client waits for a message; every message is encoded, as between processes."""

    pid = 1
    how_it_ended = ""

    def __init__(self, fd_config: FDConfig, declared: Sequence[DeclaredProcessor]) -> None:
        self.core = EngineCore(fd_config, LogitsProcessorChain(list(declared), fd_config))
        self._has_news = asyncio.Event()
        self._inbox, self._outbox = decoder(ToWorker), decoder(FromWorker)

    async def start(self, _: dict[str, bytes], quarantine: Quarantine) -> WorkerReady:
        return WorkerReady(0.0, self.core.runner.chain.argmax_invariant)

    def send(self, message: ToWorker) -> None:
        received = self._inbox.decode(encode(message))
        if isinstance(received, AddRequest):
            self.core.add(received)
        elif isinstance(received, AbortRequests):
            self.core.abort(received.request_ids)
        self._has_news.set()

    async def receive(self) -> FromWorker | None:
        # Callers read the last step, and may abort requests, before the next one.
        await asyncio.sleep(0)
        while not self.core.has_work:
            self._has_news.clear()
            await self._has_news.wait()
        step: StepOutputs = self._outbox.decode(encode(self.core.step()))
        return step

    def culprits(self, names: Sequence[str]) -> tuple[Culprit, ...]:
        return ()

    def kill(self) -> None:
        """There is no process."""

    async def stop(self) -> None:
        """There is no process."""


class InlinePreparation(RequestPreparation):
    """Starts no process for the checks of processors' authors: requests are settled in this one."""

    def start(self) -> None:
        """Nothing to start."""


class InlineEngine:
    """An engine client and its worker."""

    def __init__(self, fd_config: FDConfig, declared: Sequence[DeclaredProcessor]) -> None:
        self.worker = InlineWorker(fd_config, declared)
        self.preparation = InlinePreparation(fd_config, declared)
        self.client = EngineClient(
            fd_config, declared, lambda: cast(WorkerHandle, self.worker), preparation=self.preparation
        )


@asynccontextmanager
async def inline_engine(fd_config: FDConfig, declared: Sequence[DeclaredProcessor]) -> AsyncIterator[InlineEngine]:
    """A running engine, which is shut down at the end."""
    engine = InlineEngine(fd_config, declared)
    await engine.client.start()
    try:
        yield engine
    finally:
        await engine.client.shutdown()
