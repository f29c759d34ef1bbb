"""A processor that takes more and more memory is stopped, and what it took is given back."""

from __future__ import annotations

import gc
import mmap
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from paddle import Tensor
from support.sequences import request, tiny_engine
from support.tiny import tiny_fd_config

from fastdeploy_lp.config import StructuredOutputsConfig
from fastdeploy_lp.logits_processor import LogitsProcessor, Selection, load_processors
from fastdeploy_lp.logits_processor.chain.chain import LogitsProcessorChain
from fastdeploy_lp.logits_processor.chain.entry import MemoryGauge
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.worker.engine_core import EngineCore

MEBIBYTE = 1 << 20
STEP = 8 * MEBIBYTE
BUDGET = 40
TOKENS = 30


def taken(size: int) -> mmap.mmap:
    """Memory of the kernel's: the allocator may have some left from earlier, which would count for nothing."""
    memory = mmap.mmap(-1, size)
    # In pieces: a large temporary object would count too, until the allocator returns its memory.
    for _ in range(0, size, MEBIBYTE):
        memory.write(b"x" * MEBIBYTE)
    return memory


class Hoards(LogitsProcessor):
    """Keeps memory of every step, or gives it back."""

    only_with_args = True
    keeps = True

    def __init__(self, fd_config: Any) -> None:
        self._kept: list[Any] = []

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        self._take()

    def apply(self, logits: Tensor) -> Tensor:
        return logits

    def _take(self) -> None:
        if not self.keeps:
            self._kept.clear()
        self._kept.append(taken(STEP))


class HoardsInApply(Hoards):
    def update_state(self, share_inputs: Mapping[str, Any]) -> None: ...

    def apply(self, logits: Tensor) -> Tensor:
        self._take()
        return logits


class GivesBack(Hoards):
    keeps = False


def engine_with(processor: type, **policy: Any) -> EngineCore:
    config = tiny_fd_config(policy=StructuredOutputsConfig(**policy))
    return EngineCore(config, LogitsProcessorChain(load_processors(["m:P"], {"m:P": processor}), config))


def using(name: str, request_id: str) -> AddRequest:
    return request(request_id, [1, 2, 3], max_tokens=TOKENS, selection=Selection(named={name: {"x": 1}}))


def errors_of(engine: EngineCore, *requests: AddRequest) -> tuple[dict[str, int], dict[str, str]]:
    """How many tokens each request got, and the errors of those that did not go on."""
    tokens: dict[str, int] = {}
    errors: dict[str, str] = {}
    for each in requests:
        engine.add(each)
    while engine.has_work:
        for step in engine.step().steps:
            tokens[step.request_id] = tokens.get(step.request_id, 0) + len(step.token_ids)
            if step.error is not None:
                assert step.unavailable
                errors[step.request_id] = step.error
    return tokens, errors


@pytest.mark.parametrize("processor", [Hoards, HoardsInApply])
def test_who_takes_more_and_more_memory_goes_into_quarantine(processor: type) -> None:
    engine = engine_with(processor, memory_budget=BUDGET)
    plain = msgspec.structs.replace(using(processor.__name__, "plain"), selection=Selection())
    tokens, errors = errors_of(engine, using(processor.__name__, "hoards"), plain)
    assert list(errors) == ["hoards"]
    assert f"its budget is {BUDGET} MiB" in errors["hoards"]
    # It had its budget's worth of steps, and not many more.
    assert BUDGET * MEBIBYTE // STEP <= tokens["hoards"] <= BUDGET * MEBIBYTE // STEP + 3
    assert tokens["plain"] == TOKENS
    (entry,) = engine.runner.chain._main.entries
    assert entry.processor._kept == []
    assert engine.runner.chain.stats[processor.__name__].faults == 0


def test_who_does_so_in_shadow_runs_no_more() -> None:
    engine = engine_with(Hoards, memory_budget=BUDGET)
    asks = Selection(named={"Hoards": {"x": 1}}, shadow=("Hoards",))
    tokens, errors = errors_of(engine, msgspec.structs.replace(using("Hoards", "r"), selection=asks))
    shadow = engine.runner.chain.stats["Hoards"].shadow
    assert (tokens, errors) == ({"r": TOKENS}, {})
    assert (shadow.state, shadow.faults) == ("quarantined", 0)
    assert f"its budget is {BUDGET} MiB" in (shadow.last_error or "")
    assert BUDGET * MEBIBYTE // STEP <= shadow.tokens <= BUDGET * MEBIBYTE // STEP + 3


def test_after_a_reset_it_has_its_budget_again() -> None:
    engine = engine_with(Hoards, memory_budget=BUDGET)
    first, _ = errors_of(engine, using("Hoards", "a"))
    engine.reset_processor("Hoards")
    gc.collect()
    second, errors = errors_of(engine, using("Hoards", "b"))
    assert list(errors) == ["b"]
    assert abs(first["a"] - second["b"]) <= 2


@pytest.mark.parametrize(("processor", "budget"), [(GivesBack, BUDGET), (Hoards, 0)])
def test_who_gives_it_back_or_has_no_budget_goes_on(processor: type, budget: int) -> None:
    engine = engine_with(processor, memory_budget=budget)
    tokens, errors = errors_of(engine, using(processor.__name__, "r"))
    assert (tokens, errors) == ({"r": TOKENS}, {})


def test_builtin_processors_are_not_watched() -> None:
    engine = tiny_engine(["LogitBiasLogitsProcessor"])
    assert [entry._gauge for entry in engine.runner.chain._main.entries] == [None]


def test_the_gauge_sees_what_is_taken_and_given_back() -> None:
    gauge = MemoryGauge()
    before = gauge.resident()
    memory = taken(64 * MEBIBYTE)
    full = gauge.resident()
    assert full - before >= 60 * MEBIBYTE
    memory.close()
    assert full - gauge.resident() >= 60 * MEBIBYTE
