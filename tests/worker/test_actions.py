"""Processors that end requests and emit values: what a step reports, and what neighbours notice."""

from __future__ import annotations

import json
import random
from itertools import count
from typing import Any

import numpy as np
import pytest
from support import acting
from support.drafters import KnowsMost
from support.seen import Seen, run
from support.sequences import request, tiny_engine

from fastdeploy_lp.config import StructuredOutputsConfig
from fastdeploy_lp.config.speculation import Speculation
from fastdeploy_lp.logits_processor import Selection
from fastdeploy_lp.logits_processor.chain.recorded_actions import MAX_REASON, MAX_VALUE, MAX_VALUES
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.worker.engine_core import EngineCore

PROMPT = [5, 9, 2, 7, 11]
TOKENS = 9
SERIALS = count()
UNLIMITED = StructuredOutputsConfig(max_faults=0)


def asks(name: str = "Acts", request_id: str = "r", prompt: list[int] = PROMPT, **args: Any) -> AddRequest:
    selection = Selection(named={name: args}) if args else Selection()
    return request(request_id, prompt, max_tokens=TOKENS, selection=selection)


def one(engine: EngineCore, name: str = "Acts", **args: Any) -> Seen:
    # As in a server, no two requests of a worker have the same id.
    (seen,) = run(engine, [asks(name, f"r{next(SERIALS)}", **args)]).values()
    return seen


@pytest.fixture(scope="module")
def plain() -> list[int]:
    return one(tiny_engine()).tokens


def stopped(name: str, at: int) -> dict[str, str]:
    return {"processor": name, "reason": f"after {at}"}


DIALECTS = {
    "Acts": "support.acting:Acts",
    "ActsQuietly": "support.acting:ActsQuietly",
    "VllmActs": "support.acting:VllmActs",
    "SlotKeyedActs": "support.acting:SlotKeyedActs",
    "RequestActs": "support.acting:RequestActs",
    "PluginActs": "PluginActs=support.acting:PLUGIN",
    "TorchActs": "support.acting:TorchActs",
}


@pytest.fixture(scope="module")
def acting_engine() -> EngineCore:
    return tiny_engine([*DIALECTS.values(), "support.acting:ActsTyped", "support.acting:FailsAfter"], policy=UNLIMITED)


@pytest.mark.parametrize("at", [0, 1, 4, TOKENS - 1])
@pytest.mark.parametrize("name", DIALECTS)
def test_a_finish_drops_the_steps_token(acting_engine: EngineCore, plain: list[int], name: str, at: int) -> None:
    seen = one(acting_engine, name, finish_at=at, emit_at=[0, at])
    assert seen.tokens == plain[:at]
    assert (seen.finish_reason, seen.stop_reason) == ("stop", stopped(name, at))
    assert seen.values == [(place, name, place) for place in sorted({0, at})]


def test_a_function_gets_its_verbs_beside_the_requests_arguments(plain: list[int]) -> None:
    seen = one(tiny_engine(["support.acting:acts_function"]), "acts_function", finish_at=2)
    assert (seen.tokens, seen.stop_reason) == (plain[:2], stopped("acts_function", 2))


def test_a_finish_after_the_last_token_comes_too_late(acting_engine: EngineCore, plain: list[int]) -> None:
    seen = one(acting_engine, finish_at=TOKENS)
    assert (seen.tokens, seen.finish_reason, seen.stop_reason) == (plain, "length", None)


def test_the_first_of_the_chain_gives_the_reason(acting_engine: EngineCore, plain: list[int]) -> None:
    both = {name: {"finish_at": 2, "emit_at": [2]} for name in ("VllmActs", "Acts")}
    stats = acting_engine.runner.chain.stats
    before = {name: stats[name].finishes for name in both}
    (seen,) = run(acting_engine, [request("r", PROMPT, max_tokens=TOKENS, selection=Selection(named=both))]).values()
    assert seen.stop_reason == stopped("Acts", 2)
    assert seen.values == [(2, "Acts", 2), (2, "VllmActs", 2)]
    assert {name: stats[name].finishes - before[name] for name in both} == {"VllmActs": 0, "Acts": 1}


def test_acts_and_their_values_are_counted() -> None:
    engine = tiny_engine([acting.Acts])
    one(engine, finish_at=3, emit_at=[0, 1])
    one(engine)
    stats = engine.runner.chain.stats["Acts"]
    assert (stats.finishes, stats.emitted, stats.faults) == (1, 2, 0)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("nan"), "not JSON compliant"),
        ({1, 2}, "not JSON serializable"),
        ("x" * MAX_VALUE, "bytes of JSON"),
        ("\ud800", "surrogates not allowed"),
        (json.loads("[" * 40 + "]" * 40), "levels deep"),
        (np.float32(1), "not JSON serializable"),
    ],
    ids=["nan", "set", "large", "unicode", "deep", "numpy"],
)
def test_a_value_that_is_no_json_ends_its_request_alone(
    acting_engine: EngineCore, plain: list[int], value: Any, words: str
) -> None:
    requests = [asks(emit_at=[1], emits=value), asks(request_id="other", emit_at=[0, 1])]
    seen = run(acting_engine, requests)
    assert words in (seen["r"].error or "")
    assert "Acts failed" in (seen["r"].error or "")
    assert seen["r"].tokens == plain[:1]
    assert seen["other"].tokens == plain
    assert seen["other"].values == [(0, "Acts", 0), (1, "Acts", 1)]


def test_all_values_of_a_request_together_are_bounded_even_after_a_preemption() -> None:
    engine, text = tiny_engine([acting.Acts]), "x" * (MAX_VALUES // 4)
    engine.add(asks(emit_at=[0, 1, 2, 3, 4], emits=text[: MAX_VALUE - 2]))
    errors = []
    requests_values = MAX_VALUES // MAX_VALUE
    assert requests_values > 5
    engine.add(asks(request_id="large", emit_at=list(range(TOKENS)), emits=text[: MAX_VALUE - 2]))
    while engine.has_work:
        outputs = engine.step().steps
        errors += [(step.request_id, step.error) for step in outputs if step.error]
        if engine.scheduler.num_running > 1:
            engine.scheduler.preempt()
    assert [name for name, _ in errors] == ["large"]
    assert f"exceed {MAX_VALUES} bytes" in (errors[0][1] or "")


def test_values_are_held_against_the_declared_model(acting_engine: EngineCore) -> None:
    seen = one(acting_engine, "ActsTyped", emit_at=[0], emits={"score": 1})
    assert seen.values == [(0, "ActsTyped", {"score": 1.0})]
    assert "score" in (one(acting_engine, "ActsTyped", emit_at=[0], emits={"score": "much"}).error or "")
    assert "JSON" in (one(acting_engine, "ActsTyped", emit_at=[0], emits={"score": float("inf")}).error or "")


@pytest.mark.parametrize("reason", ["x" * (MAX_REASON + 1), 5], ids=["long", "number"])
def test_a_reason_that_is_no_short_text_ends_its_request_alone(plain: list[int], reason: Any) -> None:
    class Gives(acting.Acts):
        def update_state(self, share_inputs: Any) -> None:
            for slot in share_inputs["using_slots"]:
                if share_inputs["logits_processors_args"][slot].finish_at == 0:
                    self.actions.finish(slot, reason)

    seen = run(tiny_engine([Gives]), [asks("Gives", finish_at=0), asks("Gives", "other", finish_at=1)])
    assert "reason" in (seen["r"].error or "")
    assert seen["other"].tokens == plain


def test_another_requests_slot_is_a_fault_of_the_processor() -> None:
    seen = run(tiny_engine([acting.ActsElsewhere]), [asks("ActsElsewhere", finish_at=0), asks(request_id="other")])
    assert "slot 1 has no row in this step" in (seen["r"].error or "")
    assert len(seen["other"].tokens) == TOKENS


def test_verbs_are_invalid_outside_a_step() -> None:
    engine = tiny_engine([acting.Acts])
    one(engine, finish_at=2)
    (entry,) = engine.runner.chain.builder._groups.main.entries
    with pytest.raises(ValueError, match="only inside"):
        entry.processor.actions.finish(0, "late")
    with pytest.raises(ValueError, match="only inside"):
        acting.Acts.actions.emit(0, 1)


@pytest.mark.parametrize("in_apply", [False, True])
@pytest.mark.parametrize("name", ["Acts", "PluginActs"])
def test_an_action_counts_once_when_the_chain_runs_again(
    acting_engine: EngineCore, plain: list[int], name: str, in_apply: bool
) -> None:
    args = {"emit_at": [2, 3], "finish_at": 5, "in_apply": in_apply}
    selection = Selection(named={name: args})
    victim = request("victim", PROMPT, max_tokens=TOKENS, selection=Selection(named={"FailsAfter": {"fails_at": 3}}))
    seen = run(acting_engine, [request("r", PROMPT, max_tokens=TOKENS, selection=selection), victim])
    assert "as asked" in (seen["victim"].error or "")
    assert seen["r"].tokens == plain[:5]
    assert seen["r"].values == [(2, name, 2), (3, name, 3)]


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_a_processor_that_fails_loses_its_actions_of_the_step(plain: list[int], on_error: str) -> None:
    class ActsAndFails(acting.Acts):
        def apply(self, logits: Any) -> Any:
            if any(asked.get("finish_at") == place for _, place, asked in self.todo):
                raise ZeroDivisionError("after the finish")
            return logits

    policy = StructuredOutputsConfig(on_error=on_error, max_faults=0)
    seen = one(tiny_engine([ActsAndFails], policy=policy), "ActsAndFails", emit_at=[1, 2], finish_at=2)
    assert seen.values[0] == (1, "ActsAndFails", 1)
    assert len(seen.values) == 1
    if on_error == "fail":
        assert (seen.tokens, "after the finish" in (seen.error or "")) == (plain[:2], True)
    else:
        assert (seen.tokens, seen.finish_reason) == (plain, "length")


@pytest.mark.parametrize("sampled", [False, True])
def test_a_processor_that_greedy_steps_skip_acts_in_update_state_alone(plain: list[int], sampled: bool) -> None:
    engine = tiny_engine([acting.ActsQuietly])
    temperature = 1.0 if sampled else 0.0
    made = request(
        "r",
        PROMPT,
        max_tokens=TOKENS,
        temperature=temperature,
        seed=1,
        selection=Selection(named={"ActsQuietly": {"finish_at": 2, "in_apply": True}}),
    )
    seen = run(engine, [made])["r"]
    assert seen.finish_reason == ("stop" if sampled else "length")
    assert one(engine, "ActsQuietly", finish_at=2).tokens == plain[:2]


@pytest.mark.parametrize("config", [{"num_blocks": 24}, {"max_num_seqs": 3}, {"max_num_batched_tokens": 13}], ids=str)
@pytest.mark.parametrize("method", [None, "support.drafters:KnowsMost"])
def test_neighbours_are_those_of_a_run_without_actions(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], method: str | None
) -> None:
    rng = random.Random(7)
    names = ["Acts", "RequestActs", "PluginActs"]
    acts: dict[str, tuple[str, dict[str, Any]]] = {}
    requests, calm = [], []
    for index in range(67):
        sampling: dict[str, Any] = {"max_tokens": rng.randrange(2, 14)}
        if index % 3 == 0:
            sampling |= {"temperature": 0.9, "seed": index, "logprobs": 2}
        prompt = [rng.randrange(512) for _ in range(rng.choice([1, 4, 13]))]
        calm.append(request(f"r{index}", prompt, **sampling))
        if rng.random() < 0.5:
            name = rng.choice(names)
            asked = {"finish_at": rng.randrange(0, 10), "emit_at": rng.sample(range(12), 3)}
            acts[f"r{index}"] = name, asked
            sampling["selection"] = Selection(named={name: asked})
        requests.append(request(f"r{index}", prompt, **sampling))
    expected = run(tiny_engine(), calm)
    monkeypatch.setattr(KnowsMost, "outputs", {name: seen.tokens for name, seen in expected.items()})
    speculation = None if method is None else Speculation(method, adaptive=False)
    engine = tiny_engine(list(DIALECTS.values()), speculation=speculation, **config)
    found = run(engine, requests)
    for name, alone in expected.items():
        processor, asked = acts.get(name, ("", {}))
        length = min(len(alone.tokens), asked.get("finish_at", TOKENS * 9))
        assert found[name].tokens == alone.tokens[:length]
        assert found[name].logprobs == alone.logprobs[:length]
        is_cut = length < len(alone.tokens)
        assert found[name].stop_reason == (stopped(processor, length) if is_cut else None)
        last = length if is_cut else length - 1
        assert found[name].values == [(at, processor, at) for at in sorted(asked.get("emit_at", ())) if at <= last]
    if method is not None:
        assert any(stats.accepted for stats in engine.load().scheduler_stats.drafts)
    assert engine.blocks.num_used == 0


def test_a_dropped_token_is_not_in_the_prefix_cache(plain: list[int]) -> None:
    engine = tiny_engine([acting.Acts])
    first = one(engine, finish_at=4)
    prompt = PROMPT + plain[:8]
    engine.add(request("next", prompt, max_tokens=1))
    (step,) = engine.step().steps
    # 5 + 4 tokens, of which the last is not computed, in blocks of 4.
    assert (len(first.tokens), step.num_cached_tokens) == (4, 8)
