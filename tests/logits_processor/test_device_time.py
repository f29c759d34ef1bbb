"""Time budgets on a device whose calls return before their work is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from paddle import Tensor
from support.outcomes import engine_with, run
from support.sequences import request

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessor, Selection
from fastdeploy_lp.platforms import current_platform


class Queues(LogitsProcessor):
    """Starts work that takes the device `seconds`; the host returns at once."""

    only_with_args = True
    seconds: ClassVar[float] = 0.0

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None: ...

    def apply(self, logits: Tensor) -> Tensor:
        Clock.now += self.seconds
        return logits


class Clock:
    """The device's time."""

    now: ClassVar[float] = 0.0


class StandInWatch:
    def __init__(self) -> None:
        self._started, self._passed = 0.0, 0.0

    def start(self) -> None:
        self._started = Clock.now

    def stop(self) -> None:
        self._passed += Clock.now - self._started

    def take(self) -> float:
        passed, self._passed = self._passed, 0.0
        return passed


@pytest.mark.parametrize("shadow", [False, True])
@pytest.mark.parametrize(("seconds", "slow"), [(0.0, 0), (20.0, 0), (40.0, 4)])
def test_the_devices_time_of_the_last_step_counts(
    monkeypatch: pytest.MonkeyPatch, seconds: float, slow: int, shadow: bool
) -> None:
    """Five steps, the last of which is not measured any more."""
    monkeypatch.setattr(type(current_platform()), "watch", lambda _: StandInWatch())
    monkeypatch.setattr(Queues, "seconds", seconds)
    names = ("Queues",) if shadow else ()
    engine = engine_with(Queues, time_budget=30.0, max_faults=0, first_calls=0.0, shadow=names)
    selection = Selection(named={"Queues": {"x": 1}}, shadow=names)
    outcome = run(engine, request("r", [1, 2, 3], max_tokens=5, selection=selection))
    assert len(outcome.tokens["r"]) == 5
    stats = engine.runner.chain.stats["Queues"]
    assert (stats.shadow.faults if shadow else stats.slow_steps) == slow


def test_the_hosts_clock_suffices_on_the_cpu() -> None:
    assert current_platform().watch() is None
