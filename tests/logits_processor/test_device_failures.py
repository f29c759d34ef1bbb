"""Failures of the device that show in a processor's call: nobody's fault, and no reason for a quarantine."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from paddle import Tensor
from pydantic import BaseModel
from support.outcomes import engine_with, run
from support.sequences import request
from transformers import LogitsProcessor as HuggingFaceBase

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessor, Selection
from fastdeploy_lp.logits_processor.errors import DeviceLostError
from fastdeploy_lp.messages import AddRequest, WorkerFailed
from fastdeploy_lp.platforms import current_platform
from fastdeploy_lp.platforms.cuda_errors import cuda_failure
from fastdeploy_lp.stats import OK
from fastdeploy_lp.worker.process import WorkerProcess

LOST = OSError("(External) CUDA error(700), an illegal memory access was encountered.")
FULL = MemoryError("(ResourceExhausted) Out of memory error on GPU 0. Cannot allocate 300MB memory on GPU 0")


class Innocent(LogitsProcessor):
    """Meets an error of the device in one of its methods."""

    only_with_args = True
    error: ClassVar[Exception] = LOST
    where: ClassVar[str] = ""

    class Params(BaseModel):
        innocent: bool = False

    def __init__(self, fd_config: FDConfig) -> None: ...

    def _meet(self, where: str) -> None:
        if where == Innocent.where:
            raise Innocent.error

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        self._meet("update_state")

    def apply(self, logits: Tensor) -> Tensor:
        self._meet("apply")
        return logits


class InnocentRow(HuggingFaceBase):
    """The same for one request."""

    def __init__(self, meets: bool = False) -> None:
        self._meets = meets

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self._meets and Innocent.where == "row":
            raise Innocent.error
        return scores


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that fails as a GPU does."""
    monkeypatch.setattr(type(current_platform()), "failure_of", lambda _, error: cuda_failure(error))
    monkeypatch.setattr(Innocent, "where", "")


def using(name: str, where: str, *, shadow: tuple[str, ...] = (), **more: Any) -> AddRequest:
    named = {"InnocentRow": {"meets": True}} if where == "row" else {"Innocent": {"innocent": True}}
    return request(name, [5, 6], selection=Selection(named=named, shadow=shadow), **more)


@pytest.mark.parametrize("where", ["update_state", "apply", "row"])
@pytest.mark.parametrize("shadow", [False, True])
def test_a_lost_device_ends_the_worker_and_blames_no_processor(
    monkeypatch: pytest.MonkeyPatch, where: str, shadow: bool
) -> None:
    """No later call would work; the next worker runs all requests again."""
    name = "InnocentRow" if where == "row" else "Innocent"
    in_shadow = (name,) if shadow else ()
    engine = engine_with(Innocent, InnocentRow, shadow=in_shadow)
    monkeypatch.setattr(Innocent, "where", where)
    monkeypatch.setattr(Innocent, "error", LOST)
    engine.add(using("r", where, shadow=in_shadow, max_tokens=3))
    assert engine.finish_preparing() == []
    with pytest.raises(DeviceLostError, match=r"the device is lost: OSError: \(External\) CUDA error\(700\)"):
        engine.step()
    stats = engine.runner.chain.stats[name]
    assert (stats.state, stats.faults, stats.shadow.state, stats.shadow.faults) == (OK, 0, OK, 0)


@pytest.mark.parametrize("where", ["update_state", "apply", "row"])
def test_a_full_device_ends_requests_and_puts_nothing_into_quarantine(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    engine = engine_with(Innocent, InnocentRow, max_faults=2)
    name = "InnocentRow" if where == "row" else "Innocent"
    monkeypatch.setattr(Innocent, "where", where)
    monkeypatch.setattr(Innocent, "error", FULL)
    for attempt in range(4):
        outcome = run(
            engine, using("full", where, max_tokens=3, client=f"{attempt}"), request("other", [7], max_tokens=3)
        )
        assert set(outcome.errors) == {"full"}
        assert f"logits processor {name} did not run: the device's memory is full" in outcome.errors["full"]
        assert len(outcome.tokens["other"]) == 3
    stats = engine.runner.chain.stats[name]
    assert (stats.state, stats.faults) == (OK, 0)
    monkeypatch.setattr(Innocent, "where", "")
    assert len(run(engine, using("later", where, max_tokens=3)).tokens["later"]) == 3


def test_a_full_device_counts_no_fault_in_shadow(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_with(Innocent, max_faults=2, shadow=("Innocent",))
    monkeypatch.setattr(Innocent, "where", "apply")
    monkeypatch.setattr(Innocent, "error", FULL)
    outcome = run(engine, using("r", "apply", shadow=("Innocent",), max_tokens=4))
    assert len(outcome.tokens["r"]) == 4
    shadow = engine.runner.chain.stats["Innocent"].shadow
    assert (shadow.state, shadow.faults) == (OK, 0)


def test_the_worker_reports_a_lost_device(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = WorkerProcess.__new__(WorkerProcess)
    sent: list[object] = []

    def lost() -> None:
        raise DeviceLostError("the device is lost: CUDA error(700)")

    for name, value in {
        "_open_cache_events": lambda: None,
        "_start_engine": lost,
        "_send": sent.append,
        "_cache_events": None,
        "_socket": SimpleNamespace(close=lambda **_: None),
        "_context": SimpleNamespace(term=lambda: None),
    }.items():
        monkeypatch.setattr(worker, name, value, raising=False)
    with pytest.raises(SystemExit):
        worker.serve()
    assert sent == [WorkerFailed("DeviceLostError: the device is lost: CUDA error(700)")]
