"""Processors in shadow tell what they would have done, and do nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import support.faulty as faulty
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle import Tensor
from support.faulty import FAULT_STEP, PLUGIN, Fault
from support.processors import SetsToFive
from support.sequences import request, tiny_engine
from support.tiny import tiny_fd_config

from fastdeploy_lp.config import FDConfig, StructuredOutputsConfig
from fastdeploy_lp.logits_processor import LogitsProcessor, LogitsProcessorChain, Selection, load_processors
from fastdeploy_lp.messages import AddRequest, ShadowTokens
from fastdeploy_lp.worker.engine_core import EngineCore

VOCAB = 512
BIAS, ALLOWED, REPETITION = (f"{name}LogitsProcessor" for name in ("LogitBias", "AllowedTokens", "RepetitionPenalty"))
tokens = st.integers(0, VOCAB - 1)
ARGS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    BIAS: st.fixed_dictionaries({"logit_bias": st.dictionaries(tokens, st.floats(-3, 3), min_size=20, max_size=40)}),
    ALLOWED: st.fixed_dictionaries({"allowed_token_ids": st.lists(tokens, min_size=40, max_size=99, unique=True)}),
    REPETITION: st.fixed_dictionaries({"repetition_penalty": st.floats(1, 4)}),
}


@dataclass
class Ran:
    """What became of a request."""

    tokens: list[int] = field(default_factory=list)
    shadows: list[ShadowTokens] = field(default_factory=list)
    error: str | None = None

    def of(self, name: str) -> list[int | None]:
        """What a processor would have made of the tokens."""
        return [step[name] for step in self.shadows]


def run(engine: EngineCore, requests: Iterable[AddRequest]) -> dict[str, Ran]:
    found: dict[str, Ran] = {}
    for each in requests:
        engine.add(each)
    assert engine.finish_preparing() == []
    while engine.has_work:
        for step in engine.step().steps:
            told = found.setdefault(step.request_id, Ran())
            told.tokens += step.token_ids
            told.shadows += step.shadows or []
            told.error = step.error
    return found


@pytest.fixture(scope="module")
def engine() -> EngineCore:
    return tiny_engine([*ARGS], max_num_seqs=6)


@dataclass(frozen=True)
class Asked:
    """A request that uses some processors, some of them in shadow."""

    prompt: list[int]
    named: dict[str, dict[str, Any]]
    shadow: tuple[str, ...]
    params: dict[str, Any]

    @property
    def used(self) -> dict[str, dict[str, Any]]:
        return {name: args for name, args in self.named.items() if name not in self.shadow}

    def request(self, name: str) -> AddRequest:
        return request(name, self.prompt, selection=Selection(named=self.named, shadow=self.shadow), **self.params)

    def without_shadows(self, name: str) -> AddRequest:
        return request(name, self.prompt, selection=Selection(named=self.used), **self.params)

    def with_it(self, name: str, shadow: str, output: list[int]) -> AddRequest:
        """The next token behind this output, with what is in shadow at the end of the chain.

        A token's random number depends on seed and position, so that it is the same whether its forerunners are output
        or prompt.
        """
        order = (*(each for each in ARGS if each in self.used), shadow)
        selection = Selection(named={**self.used, shadow: self.named[shadow]}, order=order)
        return request(name, self.prompt + output, selection=selection, **self.params | {"max_tokens": 1})


@st.composite
def asked(draw: st.DrawFn) -> Asked:
    names = draw(st.lists(st.sampled_from(list(ARGS)), min_size=1, max_size=3, unique=True))
    return Asked(
        draw(st.lists(tokens, min_size=1, max_size=5)),
        {name: draw(ARGS[name]) for name in names},
        tuple(draw(st.lists(st.sampled_from(names), max_size=2, unique=True))),
        {
            "temperature": draw(st.sampled_from([0.0, 1.0, 3.0])),
            "top_k": draw(st.sampled_from([0, 20])),
            "repetition_penalty": draw(st.sampled_from([1.0, 1.5])),
            "seed": draw(st.integers(0, 2**32)),
            "max_tokens": draw(st.integers(1, 4)),
        },
    )


def test_results_are_in_the_chains_order_whoever_came_first() -> None:
    engine = tiny_engine([*ARGS], max_num_seqs=6)
    args = {BIAS: {"logit_bias": {7: 1.0}}, ALLOWED: {"allowed_token_ids": [7, 8]}}
    params = {"max_tokens": 1}
    run(engine, [Asked([1], {ALLOWED: args[ALLOWED]}, (ALLOWED,), params).request("first")])
    found = run(engine, [Asked([1], args, (ALLOWED, BIAS), params).request("second")])
    assert [list(step) for step in found["second"].shadows] == [[BIAS, ALLOWED]]


@settings(max_examples=25)
@given(st.lists(asked(), min_size=1, max_size=4))
def test_a_shadow_tells_the_token_that_there_would_be(engine: EngineCore, batch: list[Asked]) -> None:
    found = run(engine, [each.request(f"r{n}") for n, each in enumerate(batch)])
    plain = run(engine, [each.without_shadows(f"r{n}") for n, each in enumerate(batch)])
    for n, each in enumerate(batch):
        told = found[f"r{n}"]
        assert told.tokens == plain[f"r{n}"].tokens
        assert [set(step) for step in told.shadows] == [set(each.shadow)] * (len(told.tokens) if each.shadow else 0)
        for name in each.shadow:
            others = [each.with_it(f"{step}", name, told.tokens[:step]) for step in range(len(told.tokens))]
            expected = run(engine, others)
            assert told.of(name) == [expected[f"{step}"].tokens[0] for step in range(len(told.tokens))]


@pytest.mark.parametrize(
    ("name", "args"),
    [("MirostatLogitsProcessor", {"mirostat_tau": 3.0}), ("GumbelWatermarkLogitsProcessor", {"gumbel_key": 7})],
)
def test_the_choice_of_a_builtin_that_draws_is_told(name: str, args: dict[str, Any]) -> None:
    engine, params = tiny_engine([name]), {"temperature": 1.0, "seed": 4, "max_tokens": 5}
    in_shadow = Selection(named={name: args}, shadow=(name,))
    (told,) = run(engine, [request("r", [1, 2], selection=in_shadow, **params)]).values()
    (first,) = run(engine, [request("r", [1, 2], selection=Selection(named={name: args}), **params)]).values()
    assert told.error is None
    assert len(told.of(name)) == len(told.tokens) == 5
    assert told.of(name)[0] == first.tokens[0]


def test_what_was_tried_and_would_have_changed_is_counted() -> None:
    engine = tiny_engine([BIAS])
    forced = Selection(flat={"logit_bias": {7: 1000.0}}, shadow=(BIAS,))
    idle = Selection(flat={"logit_bias": {7: 0.0}}, shadow=(BIAS,))
    found = run(
        engine, [request("a", [1], max_tokens=3, selection=forced), request("b", [2], max_tokens=2, selection=idle)]
    )
    assert found["a"].of(BIAS) == [7, 7, 7]
    assert found["b"].of(BIAS) == found["b"].tokens
    stats = engine.runner.chain.stats[BIAS]
    shadow = stats.shadow
    assert (shadow.tokens, shadow.changed, shadow.faults, shadow.requests) == (5, 3, 0, 2)
    assert shadow.seconds > 0
    assert (stats.requests, stats.rows, stats.seconds) == (0, 0, 0.0)


# One that works on every row it is shown


class Fives(LogitsProcessor):
    """Forces token 5 in every row, whoever asks for it."""

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        self._rows = int((~share_inputs["stop_flags"]).sum())

    def apply(self, logits: Tensor) -> Tensor:
        assert logits.shape[0] == self._rows
        logits[:, 5] = 1000.0
        return logits


def test_one_that_spares_nobody_spares_those_who_want_it_in_shadow() -> None:
    engine = tiny_engine([Fives, BIAS])
    plain = run(tiny_engine([BIAS]), [request("r", [1, 2], max_tokens=3)])["r"].tokens
    found = run(
        engine,
        [
            request("real", [1, 2], max_tokens=3),
            request("shadow", [1, 2], max_tokens=3, selection=Selection(shadow=("Fives",))),
            request("named", [1, 2], max_tokens=3, selection=Selection(named={"Fives": {}}, shadow=("Fives",))),
        ],
    )
    assert found["real"].tokens == [5] * 3
    for name in ("shadow", "named"):
        assert found[name].tokens == plain
        assert found[name].of("Fives") == [5] * 3


def test_one_that_the_operator_put_into_shadow_is_not_in_the_chain() -> None:
    engine = tiny_engine([Fives, BIAS], policy=StructuredOutputsConfig(shadow=("Fives",)))
    assert engine.runner.chain.argmax_invariant == {"Fives": False, BIAS: False}
    found = run(engine, [request("r", [1, 2], max_tokens=3, selection=Selection(shadow=("Fives",)))])
    assert found["r"].of("Fives") == [5] * 3
    assert found["r"].tokens == run(tiny_engine([BIAS]), [request("r", [1, 2], max_tokens=3)])["r"].tokens


# State


class Counts(LogitsProcessor):
    """Forces, in rows that pass `order_token`, the token of how many steps it has seen of the request."""

    def __init__(self, fd_config: FDConfig) -> None:
        self._seen: dict[str, int] = {}
        self._next: list[int | None] = []

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        active = np.flatnonzero(~share_inputs["stop_flags"][:, 0])
        self._next = []
        for slot in active:
            name = share_inputs["req_ids"][slot]
            self._seen[name] = self._seen.get(name, 0) + 1
            wanted = share_inputs["logits_processors_args"][slot].order_token is not None
            self._next.append(self._seen[name] if wanted else None)

    def apply(self, logits: Tensor) -> Tensor:
        for row, token in enumerate(self._next):
            if token is not None:
                logits[row, token] = 1000.0
        return logits


def test_an_instance_of_its_own_follows_the_requests_in_shadow() -> None:
    engine = tiny_engine([Counts], max_num_seqs=2)
    wanted = {"order_token": 1}
    made = [
        request(f"r{n}", [n + 1], max_tokens=4, selection=Selection(flat=wanted, shadow=("Counts",) if n % 2 else ()))
        for n in range(6)
    ]
    found = run(engine, made)
    for n in range(6):
        told = found[f"r{n}"]
        assert (told.of("Counts") if n % 2 else told.tokens) == [1, 2, 3, 4]


# Faults


@pytest.fixture
def strike() -> Iterable[Callable[[str], None]]:
    def set_mode(mode: str) -> None:
        Fault.mode = mode

    yield set_mode
    Fault.mode = ""


@pytest.mark.parametrize("on_error", ["fail", "skip", "abort"])
@pytest.mark.parametrize("mode", ["raise", "half", "shape", "nothing", "state"])
@pytest.mark.parametrize("dialect", ["Native", "Vllm", "Request", "Plugin"])
def test_a_fault_in_shadow_ends_no_request(
    dialect: str, mode: str, on_error: str, strike: Callable[[str], None]
) -> None:
    found = {**vars(faulty), "Plugin": PLUGIN}[dialect]
    config = tiny_fd_config(policy=StructuredOutputsConfig(on_error=on_error, max_faults=0))
    declared = load_processors([f"{dialect}=x:Y"], {f"{dialect}=x:Y": found})
    fails = Selection(named={dialect: {"fail": True}}, shadow=(dialect,))
    spared = Selection(named={dialect: {"fail": False}}, shadow=(dialect,))

    def requests() -> list[AddRequest]:
        return [
            request("victim", [1, 2, 3], max_tokens=4, selection=fails),
            request("fellow", [4, 5, 6], max_tokens=4, selection=spared),
            request("plain", [7], max_tokens=4, selection=Selection(named={})),
        ]

    plain = run(EngineCore(config, LogitsProcessorChain(declared, config)), requests())
    engine = EngineCore(config, LogitsProcessorChain(declared, config))
    strike(mode)
    struck = run(engine, requests())
    assert {name: told.tokens for name, told in struck.items()} == {name: told.tokens for name, told in plain.items()}
    assert [told.error for told in struck.values()] == [None] * 3
    told = struck["victim"].of(dialect)
    assert None in told
    assert [other for other in told if other is not None] == [
        token for token, other in zip(struck["victim"].tokens, told, strict=True) if other is not None
    ]
    if dialect in ("Request", "Plugin"):
        assert struck["fellow"].of(dialect) == struck["fellow"].tokens
    shadow = engine.runner.chain.stats[dialect].shadow
    assert shadow.faults > 0
    assert shadow.last_error is not None
    assert shadow.last_error.startswith(f"logits processor {dialect} failed in shadow: ")
    assert engine.runner.chain.stats[dialect].faults == 0


def test_repeated_faults_put_it_out_of_service_until_it_is_reset(strike: Callable[[str], None]) -> None:
    engine = tiny_engine([faulty.Native], policy=StructuredOutputsConfig(max_faults=2))
    chain = engine.runner.chain
    fails = Selection(named={"Native": {"fail": True}}, shadow=("Native",))

    def told() -> list[int | None]:
        return run(engine, [request("r", [1, 2, 3], max_tokens=4, selection=fails)])["r"].shadows

    strike("raise")
    assert [step["Native"] is None for step in told()] == [False, False, True, False]
    assert told()[FAULT_STEP] == {"Native": None}
    assert chain.stats["Native"].shadow.state == "quarantined"
    # The chain's own instance stays in service, and requests go on without a word of the shadow.
    assert chain.stats["Native"].state == "ok"
    assert told() == []
    strike("")
    chain.reset("Native")
    assert len(told()) == 4


class CannotBeBuilt(SetsToFive):
    """Its second instance fails."""

    built = 0

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        type(self).built += 1
        if self.built > 1:
            raise RuntimeError("no more of these")


def test_a_constructor_that_fails_is_counted_too() -> None:
    engine = tiny_engine([CannotBeBuilt])
    made = request("r", [1], max_tokens=2, selection=Selection(named={}, shadow=("CannotBeBuilt",)))
    found = run(engine, [made])
    assert (len(found["r"].tokens), found["r"].shadows, found["r"].error) == (2, [], None)
    shadow = engine.runner.chain.stats["CannotBeBuilt"].shadow
    assert (shadow.faults, shadow.requests) == (1, 0)
    assert "no more of these" in str(shadow.last_error)


def test_a_shadow_that_leaves_no_token_would_have_changed_it() -> None:
    engine = tiny_engine([BIAS])
    banned = {"logit_bias": dict.fromkeys(range(VOCAB), -np.inf)}
    made = request("r", [1], max_tokens=2, selection=Selection(flat=banned, shadow=(BIAS,)))
    found = run(engine, [made, request("random", [2], temperature=1.0, seed=1, max_tokens=2)])
    assert found["r"].of(BIAS) == [-1, -1]
    assert len(found["r"].tokens) == 2
    assert engine.runner.chain.stats[BIAS].shadow.changed == 2
