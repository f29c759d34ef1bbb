"""Processors after the filters: which rows they get, which tokens follow, and what neighbours notice."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.seen import Seen, run
from support.sequences import request, tiny_engine

from fastdeploy_lp.config import StructuredOutputsConfig
from fastdeploy_lp.config.speculation import Speculation
from fastdeploy_lp.logits_processor import Selection
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.request.trace import TraceParams
from fastdeploy_lp.worker.engine_core import EngineCore

PROMPT = [5, 9, 2, 7, 11]
DRAWING = [f"{name}LogitsProcessor" for name in ("GumbelWatermark", "SynthIDWatermark", "Mirostat")]
STAGED = [
    "LogitBiasLogitsProcessor",
    *DRAWING,
    *(f"support.staged:{name}" for name in ("Leaves", "Also", "Draws1", "Revives")),
]
UNLIMITED = StructuredOutputsConfig(max_faults=0)


def asks(name: str, args: dict[str, Any] | None = None, processor: str = "Leaves", **params: Any) -> AddRequest:
    selection = Selection(named={processor: args}) if args is not None else Selection()
    given = {"temperature": 0.9, "seed": 3, "max_tokens": 9, **params}
    return request(name, given.pop("prompt", PROMPT), selection=given.pop("selection", selection), **given)


@pytest.fixture(scope="module")
def engine() -> EngineCore:
    return tiny_engine([*STAGED, "support.staged:Spoils", "support.staged:VllmLeaves"], policy=UNLIMITED)


def tokens_of(engine: EngineCore, **asked: Any) -> Seen:
    (seen,) = run(engine, [asks(f"r{random.getrandbits(40)}", **asked)]).values()
    return seen


FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"top_k": 5},
    {"top_p": 0.3},
    {"min_p": 0.2, "top_p": 0.8, "temperature": 1.3},
    {"allowed_token_ids": [3, 9, 77, 401]},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_a_processor_that_draws_as_the_sampler_does_changes_no_token(
    engine: EngineCore, filters: dict[str, Any]
) -> None:
    plain = tokens_of(engine, **filters)
    assert tokens_of(engine, args={"draws": True}, processor="Draws1", **filters).tokens == plain.tokens
    assert tokens_of(engine, args={"without": []}, **filters).tokens == plain.tokens
    assert tokens_of(engine, args={"draws": True}, processor="Draws1", **filters, seed=4).tokens != plain.tokens


def test_a_processor_after_the_filters_sees_what_they_leave(engine: EngineCore) -> None:
    seen = tokens_of(engine, args={"without": []}, top_k=5)
    assert [value for _, _, value in seen.values] == [5] * 9
    (first, *_) = seen.tokens
    without = tokens_of(engine, args={"without": [first]}, top_k=5)
    assert first not in without.tokens
    # Sees four: of the two, the second comes after the first.
    both = tokens_of(
        engine, selection=Selection(named={"Leaves": {"without": [first]}, "Also": {"without": []}}), top_k=5
    )
    assert [(name, value) for at, name, value in both.values if at == 0] == [("Leaves", 5), ("Also", 4)]
    other = [{"Also": {"without": []}, "Leaves": {"without": [first]}}]
    turned = Selection(named=other[0], order=("Also", "Leaves"))
    both = tokens_of(engine, selection=turned, top_k=5)
    assert [(name, value) for at, name, value in both.values if at == 0] == [("Also", 5), ("Leaves", 5)]


def test_a_callable_of_vllms_adapter_may_have_the_stage(engine: EngineCore) -> None:
    plain = tokens_of(engine, top_k=5)
    args = {"vllm_without": plain.tokens[0]}
    seen = tokens_of(engine, args=args, processor="VllmLeaves", top_k=5)
    assert plain.tokens[0] not in seen.tokens
    assert seen.tokens == tokens_of(engine, args={"without": [plain.tokens[0]]}, top_k=5).tokens


def test_nothing_that_was_ruled_out_comes_back(engine: EngineCore) -> None:
    allowed = [3, 9, 77, 401]
    seen = tokens_of(engine, args={"revive": True}, processor="Revives", allowed_token_ids=allowed, max_tokens=40)
    assert set(seen.tokens) == set(allowed)


def test_a_row_that_takes_the_most_likely_token_has_no_such_stage(engine: EngineCore) -> None:
    plain = tokens_of(engine, temperature=0.0)
    for processor, args in (("Leaves", {"without": [plain.tokens[0]]}), ("Draws1", {"chooses": 700})):
        seen = tokens_of(engine, args=args, processor=processor, temperature=0.0)
        assert (seen.tokens, seen.values, seen.error) == (plain.tokens, [], None)


@pytest.mark.parametrize("chooses", [512, -1, -7, 2**40, 6])
def test_an_illegal_choice_ends_its_request_and_names_the_token(engine: EngineCore, chooses: int) -> None:
    asked = [
        asks("victim", {"chooses": chooses}, "Draws1", allowed_token_ids=[3, 9, 77]),
        asks("other"),
        asks("own", {"draws": True}, "Draws1"),
    ]
    seen = run(engine, asked)
    assert f"Draws1 failed: ValueError: draw chose token {chooses}" in (seen["victim"].error or "")
    assert len(seen["victim"].tokens) == 2
    assert seen["other"].tokens == seen["own"].tokens == tokens_of(engine).tokens


@pytest.mark.parametrize("fault", [{"chooses": 512}, {"fails_at": 2}])
def test_with_skip_a_request_goes_on_with_the_token_that_the_sampler_draws(
    engine: EngineCore, fault: dict[str, int]
) -> None:
    skipping = tiny_engine(STAGED, policy=StructuredOutputsConfig(on_error="skip", max_faults=0))
    seen = run(skipping, [asks("r", {"draws": True, **fault}, "Draws1"), asks("s")])
    assert (seen["r"].tokens, seen["r"].error) == (tokens_of(engine).tokens, None)
    assert skipping.runner.chain.stats["Draws1"].faults == 1


def test_a_failing_draw_ends_the_requests_that_use_it_alone(engine: EngineCore) -> None:
    asked = [
        asks("victim", {"fails_at": 3}, "Draws1"),
        asks("greedy", {"fails_at": 3}, "Draws1", temperature=0.0),
        asks("other"),
        asks("leaves", {"without": []}),
    ]
    seen = run(engine, asked)
    assert "Draws1 failed: RuntimeError: fails as asked" in (seen["victim"].error or "")
    assert len(seen["victim"].tokens) == 3
    plain = tokens_of(engine).tokens
    assert [seen[name].tokens for name in ("other", "leaves")] == [plain, plain]
    assert (len(seen["greedy"].tokens), seen["greedy"].error) == (9, None)


def test_a_row_without_a_usable_logit_names_the_processor_after_the_filters(engine: EngineCore) -> None:
    seen = run(engine, [asks("victim", {"spoil": True}, "Spoils"), asks("other")])
    assert seen["victim"].error == "logits processor Spoils left no token that can be sampled"
    everything = {"without": list(range(512))}
    assert "Leaves" in (tokens_of(engine, args=everything).error or "")
    assert seen["other"].tokens == tokens_of(engine).tokens


def test_logprobs_are_of_the_distribution_that_was_drawn_from() -> None:
    engine = tiny_engine(STAGED, logprobs_mode="processed_logprobs")
    first = tokens_of(engine, top_k=3).tokens[0]
    for args, count in (({"without": []}, 3), ({"without": [first]}, 2)):
        top = tokens_of(engine, args=args, top_k=3, logprobs=5).logprobs[0]
        probabilities = [2.718281828459045**value for value in top.logprobs[1:] if value > -1e30]
        assert (len(probabilities), round(sum(probabilities), 4)) == (count, 1.0)


def test_the_trace_shows_the_stages() -> None:
    engine = tiny_engine(STAGED)
    selection = Selection(
        named={
            "LogitBiasLogitsProcessor": {"logit_bias": {7: 1.0}},
            "Leaves": {"without": [1]},
            "Draws1": {"draws": True},
        }
    )
    traced = {"max_tokens": 2, "logits_processors_trace": TraceParams(max_tokens=1), "selection": selection}
    engine.add(request("r", PROMPT, temperature=0.9, seed=1, top_k=4, **traced))
    engine.add(request("greedy", PROMPT, **traced))
    assert engine.finish_preparing() == []
    steps: dict[str, Any] = {}
    while engine.has_work:
        for step in engine.step().steps:
            steps.setdefault(step.request_id, (step.trace or [None])[0])
    assert [(stage.name, stage.status) for stage in steps["r"]] == [
        ("raw", "ran"),
        ("LogitBiasLogitsProcessor", "ran"),
        ("filtered", "ran"),
        ("Leaves", "ran"),
        ("Draws1", "ran"),
        ("final", "ran"),
    ]
    assert [(stage.name, stage.status) for stage in steps["greedy"]][-3:] == [
        ("Leaves", "skipped"),
        ("Draws1", "skipped"),
        ("final", "ran"),
    ]
    assert len(steps["r"][2].numbers.token_ids) == 4


def test_a_traced_request_of_a_chain_without_stages_runs_beside_one_with_them() -> None:
    engine = tiny_engine(STAGED)
    bias = {"LogitBiasLogitsProcessor": {"logit_bias": {7: 1.0}}}
    apart = Selection(named=bias, order=("LogitBiasLogitsProcessor",))
    with_stages = Selection(named={**bias, "Leaves": {"without": [1]}})
    traced = {"max_tokens": 2, "logits_processors_trace": TraceParams()}
    for name, selection in (("apart", apart), ("stages", with_stages)):
        engine.add(request(name, PROMPT, selection=selection, **traced))
    assert engine.finish_preparing() == []
    statuses: dict[str, list[str]] = {"apart": [], "stages": []}
    while engine.has_work:
        for step in engine.step().steps:
            statuses[step.request_id] += [stage.status for stages in step.trace or () for stage in stages]
    assert statuses == {"apart": ["ran"] * 6, "stages": ["ran", "ran", "skipped", "ran"] * 2}


def test_in_shadow_a_stage_shows_its_effect_and_has_none(engine: EngineCore) -> None:
    plain = tokens_of(engine).tokens
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("Leaves", {"without": plain[:1]}),
        ("Draws1", {"draws": True}),
        ("Draws1", {"fails_at": 0}),
        ("LogitBiasLogitsProcessor", {"logit_bias": {plain[0]: -100.0}}),
    ]
    expected = [tokens_of(engine, args=args, processor=name).tokens for name, args in kinds]
    assert expected[1] == plain
    expected[2] = [None]  # type: ignore[list-item]
    for (name, args), alone in zip(kinds, expected, strict=True):
        # Beside a processor of the chain that edits the final distribution, the token is not compared.
        for named in ({}, {"Also": {"without": []}}):
            selection = Selection(named={name: args, **named}, shadow=(name,))
            engine.add(asks(f"{name}{random.getrandbits(40)}", selection=selection))
            engine.finish_preparing()
            steps: list[Any] = []
            while engine.has_work:
                steps += engine.step().steps
            assert [token for step in steps for token in step.token_ids] == plain
            assert [step.error for step in steps if step.error] == []
            first = (steps[0].shadows or [{}])[0]
            assert first == ({} if named and alone[0] is not None else {name: alone[0]})


ROOMY: dict[str, Any] = {}
TIGHT: dict[str, Any] = {"max_num_batched_tokens": 9, "num_blocks": 1 + 14, "block_size": 3, "max_model_len": 40}


def any_request(rng: random.Random, index: int) -> AddRequest:
    kinds: list[tuple[str, dict[str, Any]] | None] = [
        None,
        ("Leaves", {"without": [5]}),
        ("Draws1", {"draws": True}),
        ("Revives", {"revive": True}),
        ("GumbelWatermarkLogitsProcessor", {"gumbel_key": 7, "gumbel_context_width": 2}),
        ("SynthIDWatermarkLogitsProcessor", {"synthid_key": 7, "synthid_context_width": 1}),
        ("MirostatLogitsProcessor", {"mirostat_tau": 3.0, "mirostat_eta": 0.5}),
    ]
    kind = rng.choice(kinds)
    prompt = [rng.randrange(512) for _ in range(rng.choice([1, 3, 8]))] * 2
    params = {"temperature": rng.choice([0.0, 0.7, 1.0]), "top_p": rng.choice([1.0, 0.9]), "seed": index}
    selection = Selection() if kind is None else Selection(named={kind[0]: kind[1]})
    return request(f"r{index}", prompt, max_tokens=rng.randrange(1, 16), selection=selection, **params)


@pytest.fixture(scope="module")
def alone() -> list[tuple[AddRequest, list[int]]]:
    """Random requests and the tokens of each one without others."""
    rng, engine = random.Random(7), tiny_engine(STAGED, max_num_seqs=2)
    requests = [any_request(rng, index) for index in range(48)]
    return [(each, run(engine, [each])[each.request_id].tokens) for each in requests]


@pytest.mark.parametrize(
    "room", [ROOMY, TIGHT, {"speculation": Speculation("ngram", 3)}], ids=["roomy", "tight", "speculation"]
)
def test_tokens_do_not_depend_on_who_else_is_there(
    room: dict[str, Any], alone: list[tuple[AddRequest, list[int]]]
) -> None:
    rng = random.Random(7)
    engine = tiny_engine(STAGED, **{"max_num_seqs": 6, **room})
    if "speculation" in room:
        engine.runner.warm_up()
    upcoming, seen = [each for each, _ in alone], {}
    while upcoming or engine.has_work:
        for _ in range(rng.choice([0, 1, 3])):
            if upcoming:
                engine.add(upcoming.pop(0))
        for step in engine.step().steps if engine.has_work else ():
            seen.setdefault(step.request_id, []).extend(step.token_ids)
    assert (engine.scheduler.num_preemptions > 0) == (room is TIGHT)
    assert seen == {each.request_id: tokens for each, tokens in alone}
