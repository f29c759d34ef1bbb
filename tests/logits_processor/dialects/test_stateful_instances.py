"""Instances that remember what they were called with: once for each token, whatever happens to their request."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from support.processors import SetsToFive
from support.sequences import request, run_to_end
from support.tiny import tiny_fd_config
from transformers import LogitsProcessor as HuggingFaceBase

from fastdeploy_lp.config import StructuredOutputsConfig
from fastdeploy_lp.logits_processor import LogitsProcessorChain, Selection, load_processors
from fastdeploy_lp.logits_processor.testing import Outcome, ProcessorHarness, check_processor
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.worker.engine_core import EngineCore

LENGTH = 24
MAX_MODEL_LEN = 40
BLOCK_SIZE = 4
ONE_SEQUENCE = 1 + MAX_MODEL_LEN // BLOCK_SIZE


class Follows(HuggingFaceBase):
    """Forces start, start + step, …, and raises when a call is missing or repeated, as a grammar's matcher would."""

    built: ClassVar[int] = 0

    def __init__(self, start: int, step: int = 1) -> None:
        Follows.built += 1
        self._start, self._step = start, step
        self._length = -1
        self._calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self._length not in (-1, input_ids.shape[1] - 1):
            raise RuntimeError(f"called with {input_ids.shape[1]} tokens after {self._length}")
        self._length = input_ids.shape[1]
        token = (self._start + self._calls * self._step) % scores.shape[1]
        self._calls += 1
        return torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor([token]), 0.0)


class Breaks(SetsToFive):
    """Raises in its second step: the step's rows are processed again without it."""

    def __init__(self, fd_config: Any) -> None:
        super().__init__(fd_config)
        self._calls = 0

    def apply(self, logits: Any) -> Any:
        self._calls += 1
        if self._calls == 2:
            raise RuntimeError("broken by a test")
        return logits


def engine_with(*found: type, **room: Any) -> EngineCore:
    objects: dict[str, Any] = {f"m:{each.__name__}": each for each in found}
    policy = StructuredOutputsConfig(on_error="skip", max_faults=0)
    config = tiny_fd_config(max_num_seqs=3, max_model_len=MAX_MODEL_LEN, block_size=BLOCK_SIZE, policy=policy, **room)
    return EngineCore(config, LogitsProcessorChain(load_processors(list(objects), objects), config))


def following(count: int, **also: dict[str, Any]) -> list[AddRequest]:
    return [
        request(
            f"r{index}",
            [index + 1] * (3 + index),
            max_tokens=LENGTH,
            selection=Selection(named={"Follows": {"start": 10 * index, "step": index + 1}, **also}),
        )
        for index in range(count)
    ]


def expected(index: int) -> list[int]:
    return [(10 * index + call * (index + 1)) % 512 for call in range(LENGTH)]


@pytest.mark.parametrize("caching", [True, False])
def test_a_preempted_request_keeps_its_instance(caching: bool) -> None:
    engine = engine_with(Follows, num_blocks=ONE_SEQUENCE + 4, enable_prefix_caching=caching)
    # One more is tried on a row of zeros before the first.
    before = Follows.built + 1
    ran = run_to_end(engine, following(5))
    assert engine.scheduler.num_preemptions > 0
    assert {name: each.token_ids for name, each in ran.items()} == {f"r{n}": expected(n) for n in range(5)}
    assert Follows.built - before == 5


def test_a_fault_of_another_processor_shows_no_instance_a_token_twice() -> None:
    engine = engine_with(Follows, Breaks)
    ran = run_to_end(engine, following(3, Breaks={}))
    assert engine.runner.chain.stats["Breaks"].faults > 0
    assert {name: each.token_ids for name, each in ran.items()} == {f"r{n}": expected(n) for n in range(3)}


def test_an_instance_that_is_lost_is_built_anew_and_called_for_each_token() -> None:
    engine = engine_with(Follows)
    for added in following(3):
        engine.add(added)
    assert engine.finish_preparing() == []
    tokens: dict[str, list[int]] = {}
    for count in range(LENGTH):
        if count == 7:
            (entry,) = engine.runner.chain._main.entries
            entry.rebuild()
        for step in engine.step().steps:
            assert step.error is None
            tokens.setdefault(step.request_id, []).extend(step.token_ids)
    assert tokens == {f"r{n}": expected(n) for n in range(3)}


def test_an_ended_request_leaves_no_instance() -> None:
    engine = engine_with(Follows, num_blocks=ONE_SEQUENCE + 4)
    run_to_end(engine, following(5))
    for added in following(4):
        engine.add(added)
    engine.finish_preparing()
    engine.step()
    engine.abort([f"r{n}" for n in range(4)])
    (entry,) = engine.runner.chain._main.entries
    assert entry.processor._own == {}  # type: ignore[attr-defined]
    assert engine.runner.chain.builder._holders == {}


def test_the_harness_shows_the_same() -> None:
    harness = ProcessorHarness(Follows)
    slot = harness.enter("r", {"start": 3})
    rows = [harness.step()["r"] for _ in range(4)]
    occupant = harness.leave(slot)
    harness.enter("r", {"start": 3}, prompt=occupant.prompt, output=occupant.output)
    rows += [harness.step()["r"] for _ in range(2)]
    assert [int(np.argmax(row)) for row in rows] == [3, 4, 5, 6, 7, 8]


def test_check_reports_a_processor_that_must_be_called_for_every_token() -> None:
    report = check_processor(Follows, [{"start": 3}, {"start": 9, "step": 2}], skip=["speed"])
    finding = next(each for each in report.findings if each.check == "every-token")
    assert finding.outcome is Outcome.ADVICE, finding
    assert "called for every token" in finding.message
