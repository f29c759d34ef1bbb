"""Processes that are no worker: the supervisor starts another one, until too many have failed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest
from support.tiny import tiny_fd_config

from fastdeploy_lp.config.fd_config import SupervisionConfig
from fastdeploy_lp.engine.client.supervisor import MAX_FAILED_STARTS, WorkerHandle, WorkerSupervisor
from fastdeploy_lp.engine.client.worker_loss import WorkerLoss
from fastdeploy_lp.logits_processor.chain.calls import Culprit
from fastdeploy_lp.logits_processor.quarantine import Quarantine
from fastdeploy_lp.messages import FromWorker, WorkerReady

WHY = "the worker process ended with status 3 before it was ready"


class Gone:
    """A worker that was ready and has ended."""

    how_it_ended = "the worker process ended with status 1"

    async def start(self, _: dict[str, bytes], quarantine: Quarantine) -> WorkerReady:
        return WorkerReady(0.0)

    async def receive(self) -> None:
        return None

    async def stop(self) -> None:
        return None

    def culprits(self, names: Sequence[str]) -> tuple[Culprit, ...]:
        return ()


class Client:
    """Expects nothing but the loss of the first worker."""

    is_busy = False
    quarantine = Quarantine()

    def __init__(self) -> None:
        self.lost: list[WorkerLoss] = []

    def worker_said(self, message: FromWorker) -> None:
        raise AssertionError(message)

    def worker_lost(self, loss: WorkerLoss) -> None:
        self.lost.append(loss)

    def worker_ready(self, ready: WorkerReady) -> None:
        raise AssertionError(ready)


def test_three_starts_that_fail_in_a_row_are_the_last(caplog: pytest.LogCaptureFixture) -> None:
    """Each of them says why in the log."""
    client, made = Client(), [cast(WorkerHandle, Gone())]

    def make() -> WorkerHandle:
        if client.lost:
            made.append(WorkerHandle(tiny_fd_config(), module="support.ends_at_once"))
        return made[-1]

    async def use() -> str:
        supervisor = WorkerSupervisor(SupervisionConfig(restart=True), make, client)
        await supervisor.start({})
        return await supervisor.run()

    assert asyncio.run(use()) == f"it failed too often to be started again, the last time because {WHY}"
    assert len(made) == 1 + MAX_FAILED_STARTS
    assert caplog.messages.count(f"the worker could not be started again: {WHY}") == MAX_FAILED_STARTS
    assert [loss.cause for loss in client.lost] == [Gone.how_it_ended]
