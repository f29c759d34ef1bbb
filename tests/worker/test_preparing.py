"""Instances that requests need are built beside the steps, kept with their requests, and bounded in time and number."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from itertools import permutations
from typing import Any, ClassVar

import pytest
from paddle import Tensor
from pydantic import BaseModel
from support.processors import Doubles, SetsToFive
from support.sequences import Ran, request, run_to_end
from support.tiny import tiny_fd_config

from fastdeploy_lp.config import FDConfig, StructuredOutputsConfig
from fastdeploy_lp.logits_processor import LogitsProcessor, LogitsProcessorChain, Selection, load_processors
from fastdeploy_lp.logits_processor.chain.groups import MAX_ORDER_PROCESSORS, MAX_ORDERS
from fastdeploy_lp.messages import AddRequest, SequenceStep
from fastdeploy_lp.worker.engine_core import EngineCore

FAR = 60.0


class Gate:
    """Where constructors wait after the server's start; `count` is of those that were called."""

    opened = threading.Event()
    error: ClassVar[BaseException | None] = None
    count = 0

    @classmethod
    def passes(cls) -> None:
        cls.count += 1
        if not cls.opened.wait(FAR):
            raise RuntimeError("the test did not open the gate")
        if cls.error is not None:
            raise cls.error


@pytest.fixture(autouse=True)
def gate() -> Iterator[None]:
    Gate.opened, Gate.error, Gate.count = threading.Event(), None, 0
    Gate.opened.set()
    yield
    Gate.opened.set()


class Parameters(BaseModel):
    token: int = 7


class Plugin:
    """One instance a request, whose constructor waits at the gate; forces its token."""

    def __init__(self, tokenizer: Any, parameters: Parameters) -> None:
        self._token = parameters.token
        Gate.passes()

    def __call__(self, token_ids: list[int], logits: Tensor) -> Tensor:
        logits[self._token] = 1000.0
        return logits


class Waits(SetsToFive):
    """One instance an order."""

    only_with_args = True

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        Gate.passes()


PLUGIN = {"logits_processor_class": Plugin, "parameters_model": Parameters}
OBJECTS: dict[str, Any] = {"Plugin=m:P": PLUGIN, "m:W": Waits, "m:D": Doubles}


def engine_with(timeout: float = FAR, **room: Any) -> EngineCore:
    policy = StructuredOutputsConfig(code_timeout=timeout, max_faults=0, first_calls=0.0)
    config = tiny_fd_config(policy=policy, **room)
    return EngineCore(config, LogitsProcessorChain(load_processors(list(OBJECTS), OBJECTS), config))


OWN_INSTANCE = Selection(named={"Plugin": {"token": 9}})
OWN_ORDER = Selection(named={"Doubles": {}, "Waits": {}}, order=("Doubles", "Waits"))
IN_SHADOW = Selection(named={"Waits": {}}, shadow=("Waits",))
SELECTIONS = {"instance": OWN_INSTANCE, "order": OWN_ORDER, "shadow": IN_SHADOW}


class Steps:
    """Steps an engine, and keeps what it says of each request."""

    def __init__(self, engine: EngineCore) -> None:
        self._engine = engine
        self._of: dict[str, list[SequenceStep]] = {}

    def until_over(self, request_id: str) -> list[SequenceStep]:
        """All steps of a request."""
        found = self._of.setdefault(request_id, [])
        while not found or (found[-1].finish_reason is None and found[-1].error is None):
            assert self._engine.has_work
            for step in self._engine.step().steps:
                self._of.setdefault(step.request_id, []).append(step)
        return found


@pytest.mark.parametrize("kind", SELECTIONS)
def test_others_get_their_tokens_while_a_constructor_waits(kind: str) -> None:
    engine = engine_with(max_num_seqs=2)
    calm = run_to_end(engine, [request("held", [1, 2], max_tokens=4, selection=SELECTIONS[kind])])["held"]
    Gate.opened.clear()
    engine = engine_with_held_constructors()
    engine.add(request("held", [1, 2], max_tokens=4, selection=SELECTIONS[kind]))
    steps = Steps(engine)
    # More than there are slots, and all of them after the held one: it blocks no queue.
    for number in range(3):
        engine.add(request(f"r{number}", [number + 3], max_tokens=5))
    for number in range(3):
        assert steps.until_over(f"r{number}")[-1].finish_reason == "length"
    assert engine.has_work
    # An order has a second constructor, which may return late: a step takes it. Then there is nothing to do.
    while engine.can_step:
        assert engine.step().steps == []
    Gate.opened.set()
    ran = Ran()
    for step in steps.until_over("held"):
        ran.take(step)
    assert ran.token_ids == calm.token_ids
    assert not engine.has_work


def engine_with_held_constructors() -> EngineCore:
    """The server's own instances are built; the constructors of requests wait."""
    Gate.opened.set()
    engine = engine_with(max_num_seqs=2)
    Gate.opened.clear()
    return engine


@pytest.mark.parametrize("kind", SELECTIONS)
def test_a_request_can_leave_while_its_constructor_waits(kind: str) -> None:
    engine = engine_with_held_constructors()
    engine.add(request("gone", [1], selection=SELECTIONS[kind]))
    engine.abort(["gone"])
    assert not engine.has_work
    Gate.opened.set()
    run_to_end(engine, [request("next", [1], max_tokens=2, selection=SELECTIONS[kind])])
    assert not engine.has_work


@pytest.mark.parametrize("kind", ["instance", "order"])
def test_a_constructor_that_does_not_return_ends_its_request_with_its_name(kind: str) -> None:
    engine = engine_with(timeout=0.05, max_num_seqs=2)
    Gate.opened.clear()
    engine.add(request("held", [1], selection=SELECTIONS[kind]))
    engine.add(request("plain", [2], max_tokens=3))
    (step,) = Steps(engine).until_over("held")
    assert step.unavailable
    name = "Plugin" if kind == "instance" else "Waits"
    assert step.error == f"logits processor {name}: its own code took longer than 0.05 s"


def test_a_shadow_that_cannot_be_built_in_time_is_left_out() -> None:
    engine = engine_with(timeout=0.05)
    Gate.opened.clear()
    engine.add(request("r", [1], max_tokens=2, selection=IN_SHADOW))
    steps = Steps(engine).until_over("r")
    assert (steps[-1].finish_reason, steps[-1].error) == ("length", None)
    assert engine.runner.chain.stats["Waits"].shadow.faults == 1


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt(), SystemExit(2)])
@pytest.mark.parametrize("kind", ["instance", "order"])
def test_whatever_a_constructor_raises_ends_its_request_alone(kind: str, error: BaseException) -> None:
    engine = engine_with()
    Gate.error = error
    engine.add(request("fails", [1], selection=SELECTIONS[kind]))
    engine.add(request("plain", [2], max_tokens=30))
    steps = Steps(engine)
    step = steps.until_over("fails")[-1]
    assert "logits processor " in str(step.error)
    assert type(error).__name__ in str(step.error)
    assert steps.until_over("plain")[-1].finish_reason == "length"


def test_requests_of_one_new_order_share_one_construction() -> None:
    engine = engine_with_held_constructors()
    before = Gate.count
    for number in range(4):
        engine.add(request(f"r{number}", [number + 1], max_tokens=2, selection=OWN_ORDER))
    Gate.opened.set()
    run_to_end(engine)
    assert Gate.count - before == 1


def test_more_orders_than_there_is_room_for_wait_for_room() -> None:
    names = [f"p{number}" for number in range(5)]
    objects: dict[str, Any] = {f"{name}=m:{name}": Doubles for name in names}
    config = tiny_fd_config(max_num_seqs=4)
    engine = EngineCore(config, LogitsProcessorChain(load_processors(list(objects), objects), config))
    orders = list(permutations(names))[1 : MAX_ORDERS + 20]
    named: dict[str, dict[str, Any]] = {name: {} for name in names}
    made = [
        request(f"r{number}", [number + 1], max_tokens=3, selection=Selection(named=named, order=order))
        for number, order in enumerate(orders)
    ]
    alone = {each.request_id: each for each in made[-2:]}
    ran = run_to_end(engine, made)
    assert len(ran) == len(orders)
    for name, each in alone.items():
        assert run_to_end(engine, [each])[name] == ran[name]
    assert len(engine.runner.chain._groups.all) <= 1 + MAX_ORDERS


class Remembers(LogitsProcessor):
    """Writes down the requests that it sees in its rows, as a processor that follows slots does."""

    seen: ClassVar[list[list[str]]] = []

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        flags, ids = share_inputs["stop_flags"][:, 0], share_inputs["req_ids"]
        Remembers.seen.append([ids[slot] for slot in range(len(ids)) if not flags[slot]])

    def apply(self, logits: Tensor) -> Tensor:
        return logits


def test_an_order_that_waits_for_its_next_request_costs_no_step_anything() -> None:
    config = tiny_fd_config()
    objects: dict[str, Any] = {"m:R": Remembers, "m:D": Doubles}
    engine = EngineCore(config, LogitsProcessorChain(load_processors(list(objects), objects), config))
    order = Selection(named={"Doubles": {}, "Remembers": {}}, order=("Doubles", "Remembers"))
    run_to_end(engine, [request("first", [1], max_tokens=2, selection=order)])
    Remembers.seen.clear()
    run_to_end(engine, [request("plain", [1], max_tokens=3)])
    # The main group's instance each step, and the order's once, to hear that its last request has left.
    assert Remembers.seen.count(["plain"]) == 3
    assert Remembers.seen.count([]) == 1


class Counts(LogitsProcessor):
    """Counts the calls of all its instances."""

    calls: ClassVar[int] = 0

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None: ...

    def apply(self, logits: Tensor) -> Tensor:
        Counts.calls += 1
        return logits


def engine_with_counts(names: list[str], slots: int) -> EngineCore:
    config = tiny_fd_config(max_num_seqs=slots)
    objects: dict[str, Any] = {f"{name}=m:{name}": Counts for name in names}
    return EngineCore(config, LogitsProcessorChain(load_processors(list(objects), objects), config))


def in_order(request_id: str, order: tuple[str, ...], max_tokens: int = 4) -> AddRequest:
    selection = Selection(named={name: {} for name in order}, order=order)
    return request(request_id, [1 + len(request_id)], max_tokens=max_tokens, selection=selection)


def test_a_step_calls_no_more_processors_however_many_orders_requests_have() -> None:
    names = [f"p{number}" for number in range(17)]
    engine = engine_with_counts(names, slots=32)
    orders = [tuple(names[first:] + names[:first]) for first in range(1, 17)]
    for number, order in enumerate(orders):
        engine.add(in_order(f"r{number}", order))
    assert engine.finish_preparing() == []
    # Its order waits for nothing.
    engine.add(request("plain", [1], max_tokens=40))
    ended: set[str] = set()
    while engine.has_work:
        Counts.calls = 0
        for step in engine.step().steps:
            ended |= {step.request_id} if step.finish_reason == "length" else set()
        assert Counts.calls <= len(names) + MAX_ORDER_PROCESSORS
        assert engine.scheduler.num_running == 0 or "plain" in ended or "plain" in running(engine)
    assert len(ended) == len(orders) + 1


def running(engine: EngineCore) -> set[str]:
    return {sequence.request_id for sequence in engine.scheduler._running.values()}


def test_an_order_without_room_is_not_passed_by_later_requests_with_orders_of_their_own() -> None:
    names = [f"p{number}" for number in range(MAX_ORDER_PROCESSORS)]
    engine = engine_with_counts(names, slots=4)
    large, other = tuple(names[1:] + names[:1]), tuple(reversed(names))
    engine.add(in_order("first", large))
    engine.finish_preparing()
    ends: list[str] = []
    engine.add(in_order("second", other))
    engine.add(in_order("third", large))
    while engine.has_work:
        ends += [step.request_id for step in engine.step().steps if step.finish_reason]
    assert ends == ["first", "second", "third"]
