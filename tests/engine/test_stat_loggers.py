"""All loggers are told, in order; one that fails is told nothing more, and nobody else notices."""

from __future__ import annotations

import asyncio
import logging

import pytest
from support.stat_loggers import Keeps
from support.tiny import tiny_fd_config

from fastdeploy_lp.engine.client.engine_stats import StatLoggers
from fastdeploy_lp.plugins.stat_logger import StatLoggerBase
from fastdeploy_lp.stats import IterationStats, SchedulerStats


class Fails(Keeps):
    """Raises `error` in `method`."""

    method = "record"
    error: BaseException = RuntimeError("broken")

    def _told(self, name: str) -> None:
        self.told.append(name)
        if name == self.method:
            raise self.error

    def record(
        self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None, engine_idx: int = 0
    ) -> None:
        self._told("record")

    def log(self) -> None:
        self._told("log")

    def log_engine_initialized(self) -> None:
        self._told("initialized")


def loggers(*made: StatLoggerBase) -> StatLoggers:
    return StatLoggers((f"{type(each).__name__}{place}", each) for place, each in enumerate(made))


def kept() -> Keeps:
    return Keeps(tiny_fd_config(), 0)


async def tell_everything(told: StatLoggers) -> None:
    told.log_engine_initialized()
    told.start(3600)
    for _ in range(3):
        told.record(SchedulerStats(), IterationStats(0.0))
    await told.stop()


EVERYTHING = ["initialized", "record", "record", "record", "log"]


@pytest.mark.parametrize("error", [RuntimeError("broken"), SystemExit(3), KeyError()])
@pytest.mark.parametrize("method", ["record", "log", "initialized"])
def test_one_that_fails_is_reported_once_and_dropped(
    caplog: pytest.LogCaptureFixture, method: str, error: BaseException
) -> None:
    first, failing, last = kept(), Fails(tiny_fd_config(), 0), kept()
    failing.method, failing.error = method, error
    told = loggers(first, failing, last)
    with caplog.at_level(logging.WARNING, "fastdeploy_lp"):
        asyncio.run(tell_everything(told))
    assert first.told == last.told == EVERYTHING
    assert failing.told == EVERYTHING[: EVERYTHING.index(method) + 1]
    assert told.names == ["Keeps0", "Keeps2"]
    (reported,) = [record for record in caplog.records if record.name == "fastdeploy_lp.engine.client.engine_stats"]
    assert reported.getMessage() == "stat logger Fails1 failed; it is told nothing from now on"
    assert reported.exc_info is not None
    assert reported.exc_info[1] is error


def test_log_is_called_again_and_again_and_once_at_the_end() -> None:
    called = asyncio.Event()

    class Counts(Keeps):
        def log(self) -> None:
            super().log()
            if self.told.count("log") == 3:
                called.set()

    async def run() -> list[str]:
        counting = Counts(tiny_fd_config(), 0)
        told = loggers(counting)
        told.start(0.001)
        told.start(0.001)
        await asyncio.wait_for(called.wait(), 30)
        before = len(counting.told)
        await told.stop()
        await told.stop()
        assert len(counting.told) == before + 1
        return counting.told

    assert set(asyncio.run(run())) == {"log"}


def test_an_interval_of_nothing_is_never() -> None:
    async def run() -> list[str]:
        only = kept()
        told = loggers(only)
        told.start(0)
        await told.stop()
        return only.told

    assert asyncio.run(run()) == []
