"""A processor that fails ends the requests that use it, and nobody else notices."""

from __future__ import annotations

import itertools
import sys
import traceback
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import nullcontext
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
import support.faulty as faulty
from paddle import Tensor
from support.faulty import FAULT_STEP, PLUGIN, Fault
from support.faulty_torch import PROMPT_LEN, HuggingFace, torch_vllm_classes
from support.outcomes import NUM_REQUESTS, Outcome, engine_with, naming, run
from support.sequences import request
from support.stand_ins import vllm_stand_ins

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import ChainAbortedError, LogitsProcessor, Selection
from fastdeploy_lp.messages import AddRequest

BATCH_LEVEL = ("Native", "Vllm", "Mrv2", "TorchVllm", "TorchMrv2")
ROW_LEVEL = ("Request", "Plugin", "HuggingFace")
VICTIM, FELLOW = "r13", "r20"
MAX_TOKENS = 4


def crowd(name: str, **sampling: Any) -> list[AddRequest]:
    """One victim, one more who uses the processor, and neighbours of whom some have a bias."""
    made = []
    for index in range(NUM_REQUESTS):
        request_id = f"r{index}"
        selection = Selection()
        if request_id == VICTIM:
            selection = naming(**{name: {"fail": True}})
        elif request_id == FELLOW:
            selection = naming(**{name: {"fail": False}})
        elif index % 3 == 0:
            selection = naming(LogitBiasLogitsProcessor={"logit_bias": {index: 3.0, 7: -np.inf}})
        prompt = [index + 1, 2 * index + 1, 5]
        made.append(request(request_id, prompt, max_tokens=MAX_TOKENS, selection=selection, **sampling))
        assert len(prompt) == PROMPT_LEN
    return made


@pytest.fixture(autouse=True)
def no_fault() -> Iterator[None]:
    yield
    Fault.mode = ""


@pytest.fixture(scope="module")
def undisturbed() -> Outcome:
    """The same crowd when nothing fails."""
    return run(engine_with(faulty.Native), *crowd("Native"))


@pytest.fixture(params=[*BATCH_LEVEL, *ROW_LEVEL])
def dialect(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any]]:
    """The name of a failing processor, and the thing itself."""
    found = {**vars(faulty), "Plugin": PLUGIN, "HuggingFace": HuggingFace}
    with vllm_stand_ins() if request.param in ("TorchVllm", "TorchMrv2") else nullcontext():
        yield request.param, found[request.param] if request.param in found else torch_vllm_classes()[request.param]


def renamed(made: AddRequest, request_id: str) -> AddRequest:
    """The same once more: no two requests share an id, at whatever time they run."""
    return msgspec.structs.replace(made, request_id=request_id)


def assert_same_rows(
    outcome: Outcome,
    undisturbed: Outcome,
    step: int,
    *,
    but: AbstractSet[str] = frozenset(),
) -> None:
    for index in range(NUM_REQUESTS):
        request_id = f"r{index}"
        if request_id not in but:
            row, expected = outcome.rows[request_id, step], undisturbed.rows[request_id, step]
            np.testing.assert_array_equal(row.view(np.uint32), expected.view(np.uint32), err_msg=request_id)
            assert outcome.tokens[request_id] == undisturbed.tokens[request_id]


@pytest.mark.parametrize("mode", ["", "new tensor"])
def test_a_processor_that_keeps_the_contract_disturbs_nobody(
    dialect: tuple[str, Any], mode: str, undisturbed: Outcome
) -> None:
    Fault.mode = mode
    outcome = run(engine_with(dialect[1]), *crowd(dialect[0]))
    assert outcome.errors == {}
    for step in range(MAX_TOKENS):
        assert_same_rows(outcome, undisturbed, step)


@pytest.mark.parametrize("mode", ["raise", "half", "shape", "one number", "dtype", "no tensor", "nothing", "state"])
def test_a_fault_ends_who_uses_the_processor_and_leaves_the_others_as_they_were(
    dialect: tuple[str, Any], mode: str, undisturbed: Outcome
) -> None:
    name, found = dialect
    Fault.mode = mode
    engine = engine_with(found)
    outcome = run(engine, *crowd(name))
    ended = {VICTIM} if name in ROW_LEVEL else {VICTIM, FELLOW}
    assert set(outcome.errors) == ended
    at = 0 if mode == "state" and name in ROW_LEVEL else FAULT_STEP
    for request_id in ended:
        assert outcome.errors[request_id].startswith(f"logits processor {name} failed: ")
        assert outcome.tokens[request_id] == undisturbed.tokens[request_id][:at]
    assert outcome.unavailable == set()
    if mode in ("raise", "half", "state"):
        assert "ZeroDivisionError: broken by a test" in outcome.errors[VICTIM]
    assert_same_rows(outcome, undisturbed, at, but=ended)
    stats = engine.runner.chain.stats[name]
    assert (stats.faults, stats.state, stats.last_error) == (1, "ok", outcome.errors[VICTIM])
    assert engine.runner.chain.stats["LogitBiasLogitsProcessor"].faults == 0
    assert engine.scheduler.num_running == 0


@pytest.mark.parametrize("mode", ["half", "nothing", "state"])
def test_with_skip_the_step_goes_on_without_the_processor(
    dialect: tuple[str, Any], mode: str, undisturbed: Outcome
) -> None:
    name, found = dialect
    Fault.mode = mode
    engine = engine_with(found, on_error="skip")
    outcome = run(engine, *crowd(name))
    assert outcome.errors == {}
    for step in range(MAX_TOKENS):
        assert_same_rows(outcome, undisturbed, step)
    assert engine.runner.chain.stats[name].faults == 1


@pytest.mark.parametrize("mode", ["raise", "state"])
def test_with_abort_the_worker_hears_of_it(dialect: tuple[str, Any], mode: str) -> None:
    name, found = dialect
    Fault.mode = mode
    with pytest.raises(ChainAbortedError, match=f"logits processor {name} failed"):
        run(engine_with(found, on_error="abort"), *crowd(name))


def test_a_failed_processor_serves_the_next_request(dialect: tuple[str, Any], undisturbed: Outcome) -> None:
    name, found = dialect
    Fault.mode = "half"
    engine = engine_with(found)
    assert VICTIM in run(engine, *crowd(name)).errors
    Fault.mode = "new tensor"
    again = run(engine, *[renamed(made, f"again {made.request_id}") for made in crowd(name)])
    assert again.errors == {}
    assert again.tokens == {f"again {request_id}": tokens for request_id, tokens in undisturbed.tokens.items()}


class OnlyOnce(faulty.Native):
    """Can be built once."""

    built: ClassVar[int] = 0

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        OnlyOnce.built += 1
        if OnlyOnce.built > 1:
            raise OSError("the file is gone")


def test_a_processor_that_cannot_be_built_again_goes_into_quarantine() -> None:
    OnlyOnce.built = 0
    Fault.mode = "raise"
    engine = engine_with(OnlyOnce)
    outcome = run(engine, *crowd("OnlyOnce"))
    assert set(outcome.errors) == {VICTIM, FELLOW}
    assert "broken by a test" in outcome.errors[VICTIM]
    stats = engine.runner.chain.stats["OnlyOnce"]
    assert stats.state == "quarantined"
    assert "the file is gone" in (stats.last_error or "")
    later = run(engine, *[renamed(made, f"later {made.request_id}") for made in crowd("OnlyOnce")])
    assert later.unavailable == {f"later {VICTIM}", f"later {FELLOW}"}


class UnsureWhenBuiltAgain(OnlyOnce):
    """Does not know what it is when it is built a second time."""

    def __init__(self, fd_config: FDConfig) -> None:
        faulty.Native.__init__(self, fd_config)
        OnlyOnce.built += 1

    def is_argmax_invariant(self) -> bool:
        if OnlyOnce.built > 1:
            raise OSError("the file is gone")
        return False


class Exits(faulty.Native):
    """Calls for the end of the process."""

    def apply(self, logits: Any) -> Any:
        if self._due:
            sys.exit("enough")
        return logits


@pytest.mark.parametrize("found", [UnsureWhenBuiltAgain, Exits])
def test_whatever_a_processor_does_the_worker_goes_on(found: type) -> None:
    OnlyOnce.built = 0
    Fault.mode = "raise"
    outcome = run(engine_with(found), *crowd(found.__name__))
    assert set(outcome.errors) == {VICTIM, FELLOW}


def test_who_cannot_be_built_stays_in_quarantine_until_it_can() -> None:
    OnlyOnce.built = 0
    Fault.mode = "raise"
    engine = engine_with(OnlyOnce)
    run(engine, *crowd("OnlyOnce"))
    stats = engine.runner.chain.stats["OnlyOnce"]
    engine.reset_processor("OnlyOnce")
    assert (stats.state, "the file is gone" in (stats.last_error or "")) == ("quarantined", True)
    OnlyOnce.built = 0
    engine.reset_processor("OnlyOnce")
    assert stats.state == "ok"


def test_a_fault_in_one_order_ends_nobody_of_another_order(dialect: tuple[str, Any], undisturbed: Outcome) -> None:
    name, found = dialect
    Fault.mode = "half"
    other_order = Selection(
        named={name: {"fail": True}, "LogitBiasLogitsProcessor": {}, "After": {}},
        order=(name, "LogitBiasLogitsProcessor", "After"),
    )
    requests = [
        msgspec.structs.replace(made, selection=other_order) if made.request_id == VICTIM else made
        for made in crowd(name)
    ]
    outcome = run(engine_with(found), *requests)
    assert set(outcome.errors) == {VICTIM}
    assert_same_rows(outcome, undisturbed, FAULT_STEP, but={VICTIM})


def test_a_processor_without_users_of_its_own_ends_everybody_it_is_shown() -> None:
    class Breaks(LogitsProcessor):
        def __init__(self, fd_config: FDConfig) -> None: ...

        def update_state(self, share_inputs: Mapping[str, Any]) -> None: ...

        def apply(self, logits: Tensor) -> Tensor:
            raise RuntimeError("for everybody")

        def is_argmax_invariant(self) -> bool:
            return False

    plain = [request(f"r{index}", [index + 1], max_tokens=2) for index in range(3)]
    named = request("names others", [1], max_tokens=2, selection=naming())
    outcome = run(engine_with(Breaks), *plain, named)
    assert set(outcome.errors) == {"r0", "r1", "r2"}
    assert len(outcome.tokens["names others"]) == 2


# Quarantine


def test_repeated_faults_put_it_into_quarantine_until_it_is_reset(dialect: tuple[str, Any]) -> None:
    name, found = dialect
    engine = engine_with(found, max_faults=2)
    stats = engine.runner.chain.stats[name]
    ids = itertools.count()
    plain = request("plain", [1, 2, 3], max_tokens=MAX_TOKENS)

    def ask(mode: str) -> tuple[str, Outcome]:
        """A request of a new client that uses the processor, beside one that does not."""
        Fault.mode = mode
        request_id = f"asks {next(ids)}"
        chosen = naming(**{name: {"fail": True}})
        asks = request(request_id, [1, 2, 3], max_tokens=MAX_TOKENS, selection=chosen, client=request_id)
        outcome = run(engine, asks, renamed(plain, f"plain {request_id}"))
        assert set(outcome.errors) <= {request_id}
        assert outcome.tokens[f"plain {request_id}"] == alone
        return request_id, outcome

    alone = run(engine, plain).tokens["plain"]
    for state in ("ok", "quarantined"):
        asked, outcome = ask("raise")
        assert (set(outcome.errors), outcome.unavailable, stats.state) == ({asked}, set(), state)
    for _ in range(2):
        asked, refused = ask("")
        assert refused.unavailable == {asked}
        assert refused.errors[asked].startswith(f"logits processor {name} is in quarantine after repeated faults: ")
        assert refused.tokens[asked] == []
    assert stats.faults == 2
    engine.reset_processor(name)
    assert stats.state == "ok"
    assert ask("")[1].errors == {}
    # The count towards the next quarantine begins anew.
    for state, faults in (("ok", 3), ("quarantined", 4)):
        assert ask("raise")[1].unavailable == set()
        assert (stats.state, stats.faults) == (state, faults)


def test_who_runs_when_the_quarantine_begins_is_told_so(dialect: tuple[str, Any]) -> None:
    name, found = dialect
    Fault.mode = "raise"
    engine = engine_with(found, max_faults=1)
    outcome = run(engine, *crowd(name))
    assert set(outcome.errors) == {VICTIM, FELLOW}
    assert outcome.unavailable == ({FELLOW} if name in ROW_LEVEL else set())


def test_without_a_limit_it_is_never_quarantined() -> None:
    Fault.mode = "raise"
    engine = engine_with(faulty.Native, max_faults=0)
    for count in range(1, 8):
        assert run(engine, *crowd("Native")[13:14]).unavailable == set()
        assert engine.runner.chain.stats["Native"].faults == count
    assert engine.runner.chain.stats["Native"].state == "ok"


class RaisesOneInstance(faulty.Native):
    """Has one exception for all its faults."""

    ERROR: ClassVar[Exception] = ValueError("out of range")

    def apply(self, logits: Any) -> Any:
        raise self.ERROR


def test_an_exception_that_is_raised_again_is_logged_with_its_own_frames(caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_with(RaisesOneInstance, max_faults=0)
    for _ in range(3):
        run(engine, *crowd("RaisesOneInstance")[13:14])
    logged = [traceback.format_tb(record.exc_info[2]) for record in caplog.records if record.exc_info]
    assert len(logged) >= 3
    assert all(frames == logged[0] for frames in logged)
    assert RaisesOneInstance.ERROR.__traceback__ is None
