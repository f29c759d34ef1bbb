"""A processor that fails ends the requests that use it, and nobody else notices."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
import numpy as np
import paddle
import pytest
import support.faulty as faulty
from numpy.typing import NDArray
from paddle import Tensor
from support.faulty import FAULT_STEP, PLUGIN, Fault
from support.faulty_torch import PROMPT_LEN, HuggingFace, torch_vllm_class
from support.hash_bias_torch import vllm_stand_ins
from support.recording import After, Rows, forget
from support.sequences import chain_of, request, tiny_engine
from support.tiny import tiny_fd_config

from fastdeploy_lp.config import FDConfig, StructuredOutputsConfig
from fastdeploy_lp.engine_args import spec_of
from fastdeploy_lp.logits_processor import ChainAbortedError, LogitsProcessor, Selection, load_processors
from fastdeploy_lp.logits_processor.builtin.logit_bias import LogitBiasLogitsProcessor
from fastdeploy_lp.logits_processor.chain import LogitsProcessorChain
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.worker.engine_core import EngineCore
from fastdeploy_lp.worker.logits_mask import LogitsMask

BATCH_LEVEL = ("Native", "Vllm", "TorchVllm")
ROW_LEVEL = ("Request", "Plugin", "HuggingFace")
NUM_REQUESTS = 32
VICTIM, FELLOW = "r13", "r20"
MAX_TOKENS = 4


@dataclass
class Outcome:
    """What became of every request, and the logits that the last processor saw."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    unavailable: set[str] = field(default_factory=set)
    rows: Rows = field(default_factory=dict)

    def step(self, engine: EngineCore) -> None:
        for step in engine.step().steps:
            assert step.request_id not in self.errors
            self.tokens.setdefault(step.request_id, []).extend(step.token_ids)
            if step.error is not None:
                assert step.token_ids == []
                self.errors[step.request_id] = step.error
            if step.unavailable:
                self.unavailable.add(step.request_id)


def run(engine: EngineCore, *requests: AddRequest) -> Outcome:
    forget()
    outcome = Outcome()
    for made in requests:
        engine.add(made)
    while engine.has_work:
        outcome.step(engine)
    outcome.rows = dict(After.rows)
    return outcome


def engine_with(*found: Any, max_num_seqs: int = NUM_REQUESTS, **policy: Any) -> EngineCore:
    """LogitBias, what is under test, and a recorder."""
    objects: dict[str, object] = {f"m:{index}": each for index, each in enumerate(found)}
    config = tiny_fd_config(max_num_seqs=max_num_seqs, policy=StructuredOutputsConfig(**policy))
    specs = ["LogitBiasLogitsProcessor", *objects, spec_of(After)]
    declared = load_processors(specs, {**objects, spec_of(After): After})
    return EngineCore(config, LogitsProcessorChain(declared, config))


def naming(**params: dict[str, Any]) -> Selection:
    return Selection(named={**params, "After": {}})


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
    with vllm_stand_ins() if request.param == "TorchVllm" else nullcontext():
        yield request.param, torch_vllm_class() if request.param == "TorchVllm" else found[request.param]


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
        """Somebody who uses the processor, beside somebody who does not."""
        Fault.mode = mode
        request_id = f"asks {next(ids)}"
        asks = request(request_id, [1, 2, 3], max_tokens=MAX_TOKENS, selection=naming(**{name: {"fail": True}}))
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


# Time


class Slow(LogitsProcessor):
    """Waits in the methods that `waits` names, for rows that use it."""

    only_with_args = True
    waits: ClassVar[dict[str, float]] = {}

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        self._wait("update_state")

    def apply(self, logits: Tensor) -> Tensor:
        self._wait("apply")
        return logits

    def _wait(self, method: str) -> None:
        until = time.perf_counter() + self.waits.get(method, 0.0)
        while time.perf_counter() < until:
            pass


class SlowRequest(faulty.Request):
    def new_req_logits_processor(self, params: Any) -> Any:
        def process(output_ids: list[int], row: Tensor) -> Tensor:
            Slow._wait(self, "apply")  # type: ignore[arg-type]
            return row

        return process if params.extra_args is not None else None

    waits = Slow.waits


@pytest.fixture
def waits() -> Iterator[dict[str, float]]:
    yield Slow.waits
    Slow.waits.clear()


def using(name: str, request_id: str = "r", max_tokens: int = 3) -> AddRequest:
    return request(request_id, [1, 2, 3], max_tokens=max_tokens, selection=naming(**{name: {"x": 1}}))


@pytest.mark.parametrize(
    "each",
    [
        {"update_state": 0.12},
        {"apply": 0.12},
        {"update_state": 0.12, "apply": 0.12},
        {"update_state": 0.06, "apply": 0.06},
    ],
)
def test_a_step_beyond_the_time_budget_is_counted_once(waits: dict[str, float], each: dict[str, float]) -> None:
    waits.update(each)
    engine = engine_with(Slow, time_budget=0.1, max_faults=0)
    assert run(engine, using("Slow"), request("plain", [4], max_tokens=5)).errors == {}
    stats = engine.runner.chain.stats["Slow"]
    assert (stats.slow_steps, stats.faults, stats.state) == (3, 0, "ok")
    assert stats.seconds >= 3 * sum(each.values())


def test_slow_steps_count_towards_quarantine(waits: dict[str, float]) -> None:
    waits["apply"] = 0.06
    engine = engine_with(Slow, time_budget=0.05, max_faults=2)
    outcome = run(engine, using("Slow", max_tokens=10))
    assert len(outcome.tokens["r"]) == 2
    assert outcome.unavailable == {"r"}
    assert "budget is 0.05 s" in outcome.errors["r"]


def test_a_budget_far_below_what_a_clock_can_tell_is_exceeded_without_harm() -> None:
    engine = engine_with(Slow, time_budget=1e-9, max_faults=0)
    outcome = run(engine, using("Slow"))
    stats = engine.runner.chain.stats["Slow"]
    # The alarm may come before the first line of the processor or after its last.
    assert stats.slow_steps + stats.faults > 0
    assert outcome.errors or len(outcome.tokens["r"]) == 3
    assert not engine.has_work


def test_without_a_budget_nothing_is_slow(waits: dict[str, float]) -> None:
    waits["apply"] = 0.02
    engine = engine_with(Slow, time_budget=0.0)
    assert run(engine, using("Slow")).errors == {}
    assert engine.runner.chain.stats["Slow"].slow_steps == 0


@pytest.mark.parametrize("method", ["update_state", "apply"])
def test_a_loop_without_end_is_broken_off(waits: dict[str, float], method: str) -> None:
    waits[method] = 1e9
    engine = engine_with(Slow, time_budget=0.02, max_faults=0)
    began = time.monotonic()
    outcome = run(engine, using("Slow"), request("plain", [4], max_tokens=5))
    assert time.monotonic() - began < 5
    assert set(outcome.errors) == {"r"}
    assert "logits processor Slow failed: ProcessorTimeoutError" in outcome.errors["r"]
    assert len(outcome.tokens["plain"]) == 5
    assert engine.runner.chain.stats["Slow"].faults == 1


def test_a_loop_without_end_in_one_requests_callable_ends_that_request(waits: dict[str, float]) -> None:
    waits["apply"] = 1e9
    engine = engine_with(SlowRequest, time_budget=0.02, max_faults=0)
    outcome = run(engine, using("SlowRequest"), request("plain", [4], max_tokens=5))
    assert set(outcome.errors) == {"r"}
    assert "ProcessorTimeoutError" in outcome.errors["r"]


# Rows that cannot be sampled from


class Sets(LogitsProcessor):
    """Sets all logits of rows that pass `value`, or those of `tokens`."""

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        active = np.flatnonzero(~share_inputs["stop_flags"][:, 0])
        self._args = [share_inputs["logits_processors_args"][slot] for slot in active]

    def apply(self, logits: Tensor) -> Tensor:
        for row, args in enumerate(self._args):
            if args.value is not None and args.tokens is not None:
                logits[row, args.tokens] = paddle.full([len(args.tokens)], args.value)
            elif args.value is not None:
                logits[row] = args.value
        return logits


class SetsToo(Sets): ...


SAMPLING: list[dict[str, Any]] = [{}, {"temperature": 0.8}, {"temperature": 0.8, "top_k": 5, "top_p": 0.5}]


@pytest.fixture(scope="module")
def setter() -> EngineCore:
    """An engine that every test leaves empty."""
    return engine_with(Sets, SetsToo)


@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
@pytest.mark.parametrize(
    "args",
    [
        {"value": np.nan},
        {"value": -np.inf},
        {"value": np.inf},
        {"value": np.nan, "tokens": [9]},
        {"value": np.inf, "tokens": [9]},
    ],
    ids=str,
)
def test_a_row_without_a_usable_logit_ends_its_request(
    setter: EngineCore, args: dict[str, Any], sampling: dict[str, Any]
) -> None:
    neighbours = [request(f"n{i}", [i + 1, 2, 3], max_tokens=2, seed=i, **sampling) for i in range(5)]
    alone = run(setter, *neighbours)
    spoilt = request("spoilt", [1, 2, 3], max_tokens=2, seed=1, selection=naming(Sets=args), **sampling)
    outcome = run(setter, *neighbours[:2], spoilt, *neighbours[2:])
    assert outcome.tokens == {**alone.tokens, "spoilt": []}
    assert set(outcome.errors) == {"spoilt"}
    assert "After" in outcome.errors["spoilt"]
    assert "left no token that can be sampled" in outcome.errors["spoilt"]


def test_the_last_processor_that_the_request_used_is_named() -> None:
    engine = engine_with(Sets, SetsToo)
    nan = {"value": np.nan}
    for named in ({"Sets": nan}, {"SetsToo": nan}, {"Sets": nan, "SetsToo": {}}):
        made = request("r", [1], max_tokens=2, selection=Selection(named=named))
        error = run(engine, made, request("flat", [2], max_tokens=2)).errors["r"]
        assert f"logits processor {list(named)[-1]} left" in error


def test_banning_all_tokens_but_one_is_fine() -> None:
    engine = engine_with(Sets)
    banned = {"value": -np.inf, "tokens": [token for token in range(512) if token != 77]}
    made = request("r", [1], max_tokens=3, temperature=1.0, seed=3, selection=naming(Sets=banned))
    assert run(engine, made).tokens == {"r": [77] * 3}


@dataclass
class Allow(LogitsMask):
    """A mask that leaves these tokens in slots that have any."""

    tokens: dict[int, list[int]]

    def apply(self, logits: Tensor, slots: NDArray[np.int64]) -> Tensor:
        for row, slot in enumerate(slots.tolist()):
            if slot in self.tokens:
                kept = logits[row, self.tokens[slot]].clone()
                logits[row] = -np.inf
                logits[row, self.tokens[slot]] = kept
        return logits


@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
def test_a_processor_cannot_revive_what_a_mask_rules_out(sampling: dict[str, Any]) -> None:
    engine = engine_with(Sets)
    engine.runner.mask = Allow({0: [400, 401]})
    raised = naming(Sets={"value": 1000.0, "tokens": [5, 6]}, LogitBiasLogitsProcessor={"logit_bias": {7: 1000.0}})
    masked = request("masked", [1], max_tokens=6, seed=1, selection=raised, **sampling)
    free = request("free", [1], max_tokens=6, seed=1, selection=raised, **sampling)
    outcome = run(engine, masked, free)
    assert outcome.errors == {}
    assert set(outcome.tokens["masked"]) <= {400, 401}
    assert set(outcome.tokens["free"]) <= {5, 6, 7}


def test_a_processor_that_bans_what_a_mask_allows_ends_the_request() -> None:
    engine = engine_with(Sets)
    engine.runner.mask = Allow({0: [400, 401]})
    banned = Selection(named={"Sets": {"value": -np.inf, "tokens": [400, 401]}})
    outcome = run(engine, request("r", [1], selection=banned), request("plain", [2], max_tokens=2))
    assert set(outcome.errors) == {"r"}
    assert "logits processor Sets left no token" in outcome.errors["r"]


# Counters


def test_rows_and_requests_are_counted_for_who_uses_a_processor() -> None:
    engine = engine_with(Sets)
    users = [using("Sets", f"u{length}", length) for length in (2, 3, 5)]
    run(engine, *users, *[request(f"p{i}", [1], max_tokens=4) for i in range(3)])
    stats = engine.runner.chain.stats
    assert (stats["Sets"].requests, stats["Sets"].rows) == (3, 2 + 3 + 5)
    assert stats["Sets"].seconds > 0
    assert (stats["LogitBiasLogitsProcessor"].requests, stats["LogitBiasLogitsProcessor"].rows) == (0, 0)


def test_a_step_in_which_another_processor_fails_is_counted_once() -> None:
    Fault.mode = "raise"
    engine = engine_with(Sets, faulty.Native)
    fails = request("fails", [1, 2, 3], max_tokens=5, selection=Selection(named={"Native": {"fail": True}}))
    run(engine, using("Sets", max_tokens=5), fails)
    stats = engine.runner.chain.stats
    assert stats["Native"].faults == 1
    assert stats["Sets"].rows == 5


def test_the_counters_are_told_as_soon_as_something_failed() -> None:
    Fault.mode = "raise"
    engine = tiny_engine([faulty.Native])
    engine.add(request("fails", [1, 2, 3], max_tokens=5, selection=Selection(named={"Native": {"fail": True}})))
    engine.add(request("plain", [1], max_tokens=9))
    told = [engine.step().processors for _ in range(5)]
    assert [None if stats is None else stats[0].faults for stats in told] == [None, None, 1, None, None]


def test_an_engine_of_builtins_alone_counts_no_faults() -> None:
    config = tiny_fd_config()
    engine = EngineCore(config, chain_of([LogitBiasLogitsProcessor], config))
    forced = request("r", [1], max_tokens=3, logits_processors_args={"logit_bias": {5: 1000.0}})
    assert run(engine, forced).tokens == {"r": [5, 5, 5]}
    (stats,) = engine.runner.chain.stats.values()
    assert (stats.faults, stats.requests, stats.rows) == (0, 1, 3)
