"""A mandatory processor fails closed, and a processor may raise anything without ending its worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import support.faulty as faulty
from support.faulty import PLUGIN, Fault
from support.faulty_torch import HuggingFace, torch_vllm_classes
from support.outcomes import Outcome, engine_with, naming, run
from support.sequences import request
from support.stand_ins import vllm_stand_ins

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessor, Selection
from fastdeploy_lp.logits_processor.errors import MAX_TEXT, described
from fastdeploy_lp.messages import AddRequest

BANNED = 7


class GlobalMask(LogitsProcessor):
    """Bans a token in every row, and fails when it is told to."""

    fails: str = ""

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        if self.fails == "update_state":
            raise ZeroDivisionError("broken by a test")

    def apply(self, logits: Any) -> Any:
        if self.fails == "apply":
            raise ZeroDivisionError("broken by a test")
        logits[:, BANNED] = -np.inf
        return logits


@pytest.fixture(autouse=True)
def no_fault(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(GlobalMask, "fails", "")
    yield
    Fault.mode = ""


def neighbours() -> list[AddRequest]:
    """Requests that pass the mask nothing, some of which want the banned token."""
    wants = naming(LogitBiasLogitsProcessor={"logit_bias": {BANNED: 100.0}})
    wants.named["GlobalMask"] = {}  # as the API process adds it
    flat = Selection(flat={"logit_bias": {BANNED: 100.0}})
    return [
        request("plain", [1, 2], max_tokens=3),
        request("names others", [2, 3], max_tokens=3, selection=wants),
        request("flat", [3, 4], max_tokens=3, selection=flat),
    ]


@pytest.mark.parametrize("on_error", ["fail", "skip"])
@pytest.mark.parametrize("method", ["update_state", "apply"])
def test_a_fault_of_a_mandatory_processor_ends_the_step_of_every_request(method: str, on_error: str) -> None:
    engine = engine_with(GlobalMask, mandatory=("GlobalMask",), on_error=on_error)
    GlobalMask.fails = method
    outcome = run(engine, *neighbours())
    assert set(outcome.errors) == {"plain", "names others", "flat"}
    assert all("logits processor GlobalMask failed: ZeroDivisionError" in each for each in outcome.errors.values())
    assert not any(outcome.tokens.values())
    GlobalMask.fails = ""
    again = run(engine, *[renamed(each) for each in neighbours()])
    assert again.errors == {}
    assert not any(BANNED in tokens for tokens in again.tokens.values())


def test_a_mandatory_processor_in_quarantine_refuses_everyone_until_it_is_reset() -> None:
    engine = engine_with(GlobalMask, mandatory=("GlobalMask",), max_faults=1)
    GlobalMask.fails = "apply"
    run(engine, *neighbours()[:1])
    GlobalMask.fails = ""
    refused = run(engine, *[renamed(each) for each in neighbours()])
    assert refused.unavailable == set(refused.errors) == {"again plain", "again names others", "again flat"}
    engine.reset_processor("GlobalMask")
    assert run(engine, *neighbours()).errors == {}


def test_any_other_processor_is_left_out_for_those_who_pass_it_nothing() -> None:
    """The default policy, as the documentation states it."""
    engine = engine_with(GlobalMask, max_faults=0)
    GlobalMask.fails = "apply"
    user = request("user", [1], max_tokens=2, selection=naming(GlobalMask={}))
    outcome = run(engine, user, request("plain", [1], max_tokens=1))
    assert set(outcome.errors) == {"user"}
    assert len(outcome.tokens["plain"]) == 1


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_a_fault_ends_requests_that_the_operator_forces_through_the_processor(on_error: str) -> None:
    engine = engine_with(GlobalMask, on_error=on_error, max_faults=0)
    GlobalMask.fails = "apply"
    forced = request(
        "forced", [1], max_tokens=2, selection=Selection(imposed={"GlobalMask": {}}, secret=("GlobalMask",))
    )
    withheld = request("withheld", [1], max_tokens=2, selection=Selection(secret=("GlobalMask",)))
    outcome = run(engine, forced, withheld)
    assert set(outcome.errors) == {"forced"}
    assert len(outcome.tokens["withheld"]) == 2


def renamed(made: AddRequest) -> AddRequest:
    made.request_id = f"again {made.request_id}"
    return made


# Any exception


class Panic(BaseException):
    """As pyo3's, which is no Exception."""


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


def raising(error: Callable[[], BaseException]) -> Callable[[Any], Any]:
    """A new error each time: its traceback keeps the engine."""

    def strike(_: Any) -> Any:
        raise error()

    return strike


ERRORS = [
    partial(asyncio.CancelledError),
    partial(KeyboardInterrupt),
    partial(SystemExit, 3),
    partial(GeneratorExit),
    partial(Panic, "called `Option::unwrap()` on a `None` value"),
    partial(UnprintableError),
    partial(ValueError, "half a surrogate pair \ud800"),
    partial(ValueError, "x" * 10_000_000),
]


@pytest.fixture(params=["Native", "Vllm", "Mrv2", "TorchVllm", "TorchMrv2", "Request", "Plugin", "HuggingFace"])
def dialect(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any]]:
    """The name of a failing processor, and the thing itself."""
    found = {**vars(faulty), "Plugin": PLUGIN, "HuggingFace": HuggingFace}
    with vllm_stand_ins() if request.param in ("TorchVllm", "TorchMrv2") else nullcontext():
        yield request.param, found[request.param] if request.param in found else torch_vllm_classes()[request.param]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.func.__name__)
@pytest.mark.usefixtures("as_in_a_worker")
def test_a_processor_may_raise_anything(
    dialect: tuple[str, Any], error: partial[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, found = dialect
    engine = engine_with(found)
    monkeypatch.setattr(Fault, "strike", raising(error))
    user = request("user", [1, 2], max_tokens=4, selection=naming(**{name: {"fail": True}}))
    calm = run(engine, request("calm", [1, 2], max_tokens=4)).tokens["calm"]
    outcome: Outcome = run(engine, user, request("neighbour", [1, 2], max_tokens=4))
    assert set(outcome.errors) == {"user"}
    assert outcome.errors["user"].startswith(f"logits processor {name} failed: ")
    assert len(outcome.errors["user"].encode()) < MAX_TEXT + 200
    assert outcome.tokens["neighbour"] == calm


@pytest.mark.usefixtures("as_at_a_terminal")
def test_the_interrupt_of_a_user_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where SIGINT is not ignored, as in the author kit, a processor's call is no place to lose it."""
    engine = engine_with(faulty.Native)
    user = request("user", [1, 2], max_tokens=4, selection=naming(Native={"fail": True}))
    monkeypatch.setattr(Fault, "strike", raising(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run(engine, user)


def test_the_text_of_an_error_is_bounded_and_never_raises() -> None:
    assert described(UnprintableError()) == "UnprintableError: it cannot be printed"
    assert len(described(ValueError("x" * 10**6))) < MAX_TEXT + 20


# Quarantine


def test_no_single_client_quarantines_a_processor(dialect: tuple[str, Any]) -> None:
    """Nor do its many bad sets of arguments; as many clients as the limit do."""
    name, found = dialect
    engine = engine_with(found, max_faults=2)
    Fault.mode = "raise"
    states = []
    for index, client in enumerate(["a", "a", "a", "b"]):
        chosen = naming(**{name: {"fail": True}})
        run(engine, request(f"r{index}", [1, 2, 3], max_tokens=4, selection=chosen, client=client))
        states.append(engine.runner.chain.stats[name].state)
    assert states == ["ok", "ok", "ok", "quarantined"]


def test_a_fault_without_arguments_is_the_processors_own() -> None:
    engine = engine_with(GlobalMask, max_faults=2)
    GlobalMask.fails = "apply"
    for index in range(2):
        run(engine, request(f"r{index}", [1], max_tokens=2, client="a"))
    assert engine.runner.chain.stats["GlobalMask"].state == "quarantined"
