"""Traces tell the truth, of every stage, and change nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle import Tensor
from support.faulty import FAULT_STEP, Fault, Native
from support.processors import Doubles, SetsToFive
from support.recording import Before, forget
from support.row_ops import ROW_OPS, make_row_ops
from support.sequences import request, tiny_engine
from support.trace_reference import REFERENCES, Text, check_numbers, final, penalties, sampled

from fastdeploy_lp.config import FDConfig, StructuredOutputsConfig
from fastdeploy_lp.logits_processor import LogitsProcessor, Selection
from fastdeploy_lp.messages import AddRequest, StageTrace
from fastdeploy_lp.request.trace import TraceParams
from fastdeploy_lp.worker.engine_core import EngineCore
from fastdeploy_lp.worker.sampler import sampler

VOCAB = 512
LOGIT_BIAS = "LogitBiasLogitsProcessor"
tokens = st.integers(0, VOCAB - 1)
ARGS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    LOGIT_BIAS: st.fixed_dictionaries(
        {"logit_bias": st.dictionaries(tokens, st.floats(-9, 9), min_size=1, max_size=4)}
    ),
    "RepetitionPenaltyLogitsProcessor": st.fixed_dictionaries({"repetition_penalty": st.floats(0.5, 3)}),
    "PresencePenaltyLogitsProcessor": st.fixed_dictionaries({"presence_penalty": st.floats(-2, 2)}),
    "AllowedTokensLogitsProcessor": st.fixed_dictionaries(
        {"allowed_token_ids": st.lists(tokens, min_size=3, max_size=40, unique=True)}
    ),
    "NoRepeatNGramLogitsProcessor": st.fixed_dictionaries({"no_repeat_ngram_size": st.integers(1, 3)}),
    "MinPLogitsProcessor": st.fixed_dictionaries({"min_p": st.floats(0.01, 1)}),
    "TopNSigmaLogitsProcessor": st.fixed_dictionaries({"top_n_sigma": st.floats(0.5, 4)}),
    "EpsilonCutoffLogitsProcessor": st.fixed_dictionaries({"epsilon_cutoff": st.floats(0.0005, 0.01)}),
}


@dataclass
class Traced:
    """What became of a request: its tokens, and for those that were traced their stages."""

    tokens: list[int] = field(default_factory=list)
    stages: list[list[StageTrace]] = field(default_factory=list)
    error: str | None = None

    @property
    def names(self) -> list[list[str]]:
        return [[stage.name for stage in stages] for stages in self.stages]

    def numbers(self) -> list[list[tuple[Any, ...]]]:
        """All that does not depend on the clock."""
        return [[(stage.name, stage.status, stage.numbers) for stage in stages] for stages in self.stages]


def run(engine: EngineCore, requests: Iterable[AddRequest]) -> dict[str, Traced]:
    forget()
    found: dict[str, Traced] = {}
    for each in requests:
        engine.add(each)
    while engine.has_work:
        for step in engine.step().steps:
            told = found.setdefault(step.request_id, Traced())
            told.tokens += step.token_ids
            told.stages += step.trace or []
            told.error = step.error
    return found


@pytest.fixture(scope="module", params=ROW_OPS)
def engine(request: pytest.FixtureRequest) -> EngineCore:
    """Every builtin that has a reference, behind a recorder of the model's own logits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler, "row_ops", lambda: make_row_ops(request.param))
        return tiny_engine([Before, *REFERENCES], max_num_seqs=6)


@st.composite
def selections(draw: st.DrawFn) -> Selection:
    names = draw(st.lists(st.sampled_from(list(ARGS)), max_size=4, unique=True))
    named = {"Before": {}, **{name: draw(ARGS[name]) for name in names}}
    order = ("Before", *names) if draw(st.booleans()) else None
    return Selection(named=named, order=order)


params = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.7, 1.0, 2.5]),
        "top_k": st.sampled_from([0, 0, 1, 5, 100]),
        "top_p": st.sampled_from([1.0, 0.9, 0.3]),
        "min_p": st.sampled_from([0.0, 0.0, 0.2]),
        "repetition_penalty": st.sampled_from([1.0, 1.0, 1.7]),
        "presence_penalty": st.sampled_from([0.0, 0.0, 1.5]),
        "allowed_token_ids": st.none() | st.lists(tokens, min_size=200, max_size=200, unique=True),
        "seed": st.integers(0, 2**64 - 1),
        "max_tokens": st.integers(1, 4),
    }
)


@dataclass(frozen=True)
class Asked:
    """A request as it is drawn; `trace` None for one that is not traced."""

    prompt: list[int]
    selection: Selection
    params: dict[str, Any]
    trace: TraceParams | None

    def request(self, name: str, *, traced: bool) -> AddRequest:
        trace = self.trace if traced else None
        return request(name, self.prompt, selection=self.selection, logits_processors_trace=trace, **self.params)


traces = st.none() | st.builds(TraceParams, top_k=st.integers(1, 20), max_tokens=st.none() | st.integers(1, 3))
asked = st.builds(Asked, st.lists(tokens, min_size=1, max_size=6), selections(), params, traces)


@settings(max_examples=20)
@given(st.lists(asked, min_size=1, max_size=5))
def test_every_stage_is_what_numpy_makes_of_the_row_before(engine: EngineCore, batch: list[Asked]) -> None:
    plain = run(engine, [each.request(f"r{n}", traced=False) for n, each in enumerate(batch)])
    found = run(engine, [each.request(f"r{n}", traced=True) for n, each in enumerate(batch)])
    assert {name: told.tokens for name, told in found.items()} == {name: told.tokens for name, told in plain.items()}
    for n, each in enumerate(batch):
        check_trace(f"r{n}", each, found[f"r{n}"])


def check_trace(name: str, each: Asked, found: Traced) -> None:
    if each.trace is None:
        assert found.stages == []
        return
    assert len(found.stages) == min(each.trace.max_tokens or len(found.tokens), len(found.tokens))
    made = each.request(name, traced=True).params
    for step, (token, stages) in enumerate(zip(found.tokens, found.stages, strict=False)):
        text = Text(each.prompt, found.tokens[:step])
        skipped = {stage.name for stage in stages if stage.status == "skipped"}
        assert not skipped or made.temperature == 0
        rows = expected_rows(Before.rows[name, step], text, each, made, skipped)
        assert [stage.name for stage in stages] == list(rows)
        before: np.ndarray | None = None
        for stage, row in zip(stages, rows.values(), strict=True):
            assert (stage.numbers is None) == (stage.name in skipped)
            if stage.numbers is None:
                continue
            assert (stage.status, stage.seconds >= 0) == ("ran", True)
            assert len(stage.numbers.token_ids) <= each.trace.top_k
            check_numbers(stage.numbers, row, before, token)
            before = row
        row = list(rows.values())[-2]
        assert token == sampled(row, text, made)


def expected_rows(raw: np.ndarray, text: Text, each: Asked, made: Any, skipped: set[str]) -> dict[str, np.ndarray]:
    """The row behind each stage, by name, in the order in which they ran."""
    row = raw.copy()
    rows = {"raw": row.copy()}
    named = each.selection.named or {}
    for name in each.selection.order or [name for name in ("Before", *REFERENCES) if name in named]:
        if name != "Before" and name not in skipped:
            row = REFERENCES[name](row, text, named[name])
        rows[name] = row.copy()
    if made.allowed_token_ids is not None or (made.repetition_penalty, made.presence_penalty) != (1.0, 0.0):
        row = penalties(row, text, made)
        rows["penalties"] = row.copy()
    return {**rows, "final": final(row, made)}


# Which stages there are


class Flatter(LogitsProcessor):
    """Makes rows flatter, which changes no row's most likely token."""

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None: ...

    def apply(self, logits: Tensor) -> Tensor:
        return logits.scale_(0.5)

    def is_argmax_invariant(self) -> bool:
        return True


def traced(name: str, prompt: list[int], **params: Any) -> AddRequest:
    return request(name, prompt, logits_processors_trace=TraceParams(top_k=4), **params)


def statuses(stages: list[StageTrace]) -> dict[str, str]:
    return {stage.name: stage.status for stage in stages}


def test_a_processor_that_greedy_rows_do_not_need_shows_as_skipped() -> None:
    engine = tiny_engine([Flatter])
    found = run(engine, [traced("r", [1, 2], max_tokens=3), request("random", [3], temperature=1.0, max_tokens=1)])
    first, *rest = found["r"].stages
    assert statuses(first) == {"raw": "ran", "Flatter": "ran", "final": "ran"}
    assert [statuses(stages)["Flatter"] for stages in rest] == ["skipped", "skipped"]
    assert [stages[1].numbers for stages in rest] == [None, None]
    # Seen from the last stage, nothing lies between the model and it.
    raw, _, last = rest[0]
    assert raw.numbers is not None
    assert last.numbers is not None
    assert last.numbers.moved == pytest.approx(1 - np.exp(raw.numbers.logit - raw.numbers.log_sum))


def test_a_processor_that_the_request_does_not_use_is_no_stage() -> None:
    engine = tiny_engine([LOGIT_BIAS, "second=LogitBiasLogitsProcessor", SetsToFive])
    biased = Selection(named={"second": {"logit_bias": {5: 1.0}}})
    found = run(engine, [traced("plain", [1], max_tokens=1), traced("biased", [1], max_tokens=1, selection=biased)])
    # One that declares no arguments may work on any row.
    assert found["plain"].names == [["raw", "SetsToFive", "final"]]
    assert found["biased"].names == [["raw", "second", "final"]]


def test_stages_come_in_the_order_of_the_request() -> None:
    engine = tiny_engine([SetsToFive, Doubles])
    args = {"SetsToFive": {"order_token": 9}, "Doubles": {"order_token": 9}}
    backwards = Selection(named=args, order=("Doubles", "SetsToFive"))
    found = run(
        engine,
        [
            traced("forwards", [1], max_tokens=1, selection=Selection(named=args)),
            traced("backwards", [1], max_tokens=1, selection=backwards),
            traced("alone", [1], max_tokens=1, selection=Selection(named={"Doubles": {"order_token": 9}})),
        ],
    )
    assert found["forwards"].names == [["raw", "SetsToFive", "Doubles", "final"]]
    assert found["backwards"].names == [["raw", "Doubles", "SetsToFive", "final"]]
    assert found["alone"].names == [["raw", "Doubles", "final"]]


@pytest.mark.parametrize("on_error", ["skip", "fail"])
@pytest.mark.parametrize("mode", ["raise", "half", "state"])
def test_a_fault_tells_nothing_twice(on_error: str, mode: str) -> None:
    """The logits are computed again; what was told of the first attempt is void."""
    policy = StructuredOutputsConfig(on_error=on_error, max_faults=0)
    bias = Selection(named={LOGIT_BIAS: {"logit_bias": {7: 3.0}}})
    both = Selection(named={LOGIT_BIAS: {"logit_bias": {7: 3.0}}, "Native": {"fail": True}, "SetsToFive": {}})

    def outcome() -> dict[str, Traced]:
        engine = tiny_engine([LOGIT_BIAS, Native, SetsToFive], policy=policy)
        victim = traced("victim", [5, 6], max_tokens=4, selection=both)
        return run(engine, [victim, traced("other", [1, 2], max_tokens=4, selection=bias)])

    plain = outcome()
    try:
        Fault.mode = mode
        found = outcome()
    finally:
        Fault.mode = ""
    assert found["other"].numbers() == plain["other"].numbers()
    assert found["victim"].numbers()[:FAULT_STEP] == plain["victim"].numbers()[:FAULT_STEP]
    if on_error == "fail":
        assert found["victim"].error is not None
        assert len(found["victim"].stages) == FAULT_STEP
        return
    assert found["victim"].tokens == plain["victim"].tokens
    assert [statuses(stages)["Native"] for stages in found["victim"].stages] == ["ran", "ran", "failed", "ran"]
    assert found["victim"].names == plain["victim"].names
    # The processor changes nothing, so that without it everything else is as it was.
    struck, calm = found["victim"].stages[FAULT_STEP], plain["victim"].stages[FAULT_STEP]
    for one, other in zip(struck, calm, strict=True):
        if one.name != "Native":
            assert one.numbers == other.numbers


def test_a_request_that_comes_back_goes_on_with_its_trace() -> None:
    def requests() -> list[AddRequest]:
        trace = TraceParams(top_k=3, max_tokens=9)
        return [
            request(f"r{n}", [n + 1] * 9, max_tokens=12, ignore_eos=True, logits_processors_trace=trace)
            for n in range(4)
        ]

    calm = run(tiny_engine(max_num_seqs=4), requests())
    engine = tiny_engine(max_num_seqs=4, num_blocks=17)
    found = run(engine, requests())
    assert engine.scheduler.num_preemptions > 0
    assert {name: told.numbers() for name, told in found.items()} == {
        name: told.numbers() for name, told in calm.items()
    }
    assert {len(told.stages) for told in found.values()} == {9}


def test_a_request_that_is_not_traced_is_told_nothing_of() -> None:
    found = run(tiny_engine([LOGIT_BIAS]), [traced("r", [1], max_tokens=2), request("plain", [2], max_tokens=2)])
    assert len(found["r"].stages) == 2
    assert found["plain"].stages == []
