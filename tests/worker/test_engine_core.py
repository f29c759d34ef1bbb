from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest
from support.processors import FORCED_TOKEN, YourLogitsProcessor
from support.sequences import Ran, request, run_to_end, tiny_engine
from support.tiny import tiny_fd_config

from fastdeploy_lp.logits_processor.builtin.logit_bias import LogitBiasLogitsProcessor
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.worker.engine_core import EngineCore

MAX_MODEL_LEN = 32
BIAS_FORCES = 1000.0


def engine(max_num_seqs: int = 4, **config: Any) -> EngineCore:
    processors = [LogitBiasLogitsProcessor, YourLogitsProcessor]
    return tiny_engine(processors, max_num_seqs=max_num_seqs, max_model_len=MAX_MODEL_LEN, **config)


@pytest.fixture(scope="module")
def shared() -> EngineCore:
    """An engine that every test leaves empty."""
    return engine()


def run_one(core: EngineCore, added: AddRequest) -> Ran:
    return run_to_end(core, [added])[added.request_id]


def forcing(token: int) -> dict[str, Any]:
    """Arguments that make this token the most likely one."""
    return {"logit_bias": {token: BIAS_FORCES}}


# A request's output is its own


def varied_requests(count: int) -> list[AddRequest]:
    rng = random.Random(5)
    made = []
    for index in range(count):
        kind = index % 4
        sampling: dict[str, Any] = {} if kind == 0 else {"temperature": rng.choice([0.7, 1.0, 1.5]), "seed": index}
        if kind > 1:
            sampling |= {"top_k": rng.choice([3, 20])} if kind == 2 else {"top_p": 0.8}
        if rng.random() < 0.4:
            sampling["logits_processors_args"] = {"logit_bias": {rng.randrange(512): 2.0, 7: -np.inf}}
        prompt = [rng.randrange(512) for _ in range(rng.choice([1, 4, 5, 11, 20]))]
        made.append(request(f"r{index}", prompt, max_tokens=rng.randrange(3, 12), **sampling))
    return made


def test_a_request_alone_and_in_a_crowd_gives_the_same_tokens() -> None:
    requests = varied_requests(24)
    core = engine(max_num_seqs=7)
    alone = {made.request_id: run_one(core, made) for made in requests}
    assert run_to_end(core, requests) == alone
    assert run_to_end(core, list(reversed(requests))) == alone
    # One more comes in with every step, so that everybody meets others at other positions.
    staggered: dict[str, Ran] = {}
    upcoming = list(requests)
    while upcoming or core.has_work:
        if upcoming:
            core.add(upcoming.pop())
        for step in core.step().steps:
            staggered.setdefault(step.request_id, Ran()).take(step)
    assert staggered == alone


def test_the_same_seed_repeats_and_another_seed_differs(shared: EngineCore) -> None:
    def tokens(seed: int) -> list[int]:
        made = request("r", [1, 2, 3], temperature=1.0, seed=seed, max_tokens=12)
        return run_one(shared, made).token_ids

    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(2)


def test_a_processor_changes_the_requests_that_ask_for_it_and_no_others(shared: EngineCore) -> None:
    plain = request("plain", [5, 6, 7], max_tokens=6)
    alone = run_one(shared, plain)
    ran = run_to_end(
        shared,
        [
            request("forced", [5, 6, 7], max_tokens=6, logits_processors_args={"enable_your_logits_processor": True}),
            plain,
            request("biased", [5, 6, 7], max_tokens=6, logits_processors_args=forcing(9)),
        ],
    )
    assert ran["forced"].token_ids == [FORCED_TOKEN] * 6
    assert ran["biased"].token_ids == [9] * 6
    assert ran["plain"] == alone


# Why a request ends


@pytest.fixture(scope="module")
def with_eos() -> EngineCore:
    return engine(eos_token_ids=(2, 3))


@pytest.mark.parametrize("eos", [2, 3])
def test_an_end_of_sequence_token_ends_with_stop(with_eos: EngineCore, eos: int) -> None:
    ran = run_one(with_eos, request("r", [5], max_tokens=8, logits_processors_args=forcing(eos)))
    assert (ran.token_ids, ran.finish_reason, ran.stop_reason) == ([eos], "stop", eos)


def test_end_of_sequence_on_the_last_allowed_token_is_a_stop(with_eos: EngineCore) -> None:
    ran = run_one(with_eos, request("r", [5], max_tokens=1, logits_processors_args=forcing(2)))
    assert (ran.token_ids, ran.finish_reason) == ([2], "stop")


def test_the_token_limit_ends_with_length(with_eos: EngineCore) -> None:
    ran = run_one(with_eos, request("r", [5], max_tokens=4, logits_processors_args=forcing(9)))
    assert (ran.token_ids, ran.finish_reason, ran.stop_reason) == ([9] * 4, "length", None)


def test_ignore_eos_goes_on_to_the_limit(with_eos: EngineCore) -> None:
    made = request("r", [5], max_tokens=4, ignore_eos=True, logits_processors_args=forcing(2))
    ran = run_one(with_eos, made)
    assert (ran.token_ids, ran.finish_reason) == ([2] * 4, "length")


def test_a_stop_token_of_the_request_ends_it_even_with_ignore_eos(with_eos: EngineCore) -> None:
    made = request("r", [5], max_tokens=4, ignore_eos=True, stop_token_ids=[8], logits_processors_args=forcing(8))
    ran = run_one(with_eos, made)
    assert (ran.token_ids, ran.finish_reason, ran.stop_reason) == ([8], "stop", 8)


def test_one_requests_stop_tokens_do_not_end_another(with_eos: EngineCore) -> None:
    ran = run_to_end(
        with_eos,
        [
            request("stops", [5], max_tokens=4, stop_token_ids=[8], logits_processors_args=forcing(8)),
            request("goes on", [5], max_tokens=4, logits_processors_args=forcing(8)),
        ],
    )
    assert ran["stops"].finish_reason == "stop"
    assert (ran["goes on"].token_ids, ran["goes on"].finish_reason) == ([8] * 4, "length")


@pytest.mark.parametrize("prompt_len", [1, 20, MAX_MODEL_LEN - 1])
@pytest.mark.parametrize("max_tokens", [None, 1000])
def test_a_full_context_ends_with_length(shared: EngineCore, prompt_len: int, max_tokens: int | None) -> None:
    ran = run_one(shared, request("r", [1] * prompt_len, max_tokens=max_tokens))
    assert (len(ran.token_ids), ran.finish_reason) == (MAX_MODEL_LEN - prompt_len, "length")


def test_every_slot_can_fill_its_context_at_the_same_time() -> None:
    core = engine(max_num_seqs=3)
    ran = run_to_end(core, [request(f"r{i}", [i + 1] * (i + 1)) for i in range(3)])
    assert [len(ran[f"r{i}"].token_ids) for i in range(3)] == [MAX_MODEL_LEN - i - 1 for i in range(3)]
    assert (
        core.blocks.num_free == tiny_fd_config(max_num_seqs=3, max_model_len=MAX_MODEL_LEN).cache_config.num_blocks - 1
    )


# Slots and queue


def test_more_requests_than_slots_are_served_in_order() -> None:
    core = engine(max_num_seqs=2)
    for index in range(7):
        core.add(request(f"r{index}", [index + 1], max_tokens=2))
    first_seen: list[str] = []
    while core.has_work:
        outputs = core.step()
        assert len(outputs.steps) <= 2
        assert outputs.scheduler_stats.num_running_reqs <= 2
        first_seen += [step.request_id for step in outputs.steps if step.request_id not in first_seen]
    assert first_seen == [f"r{index}" for index in range(7)]


def test_a_step_tells_the_load_after_it() -> None:
    core = engine(max_num_seqs=2)
    for index in range(3):
        core.add(request(f"r{index}", [1], max_tokens=index + 1))
    loads = []
    while core.has_work:
        outputs = core.step()
        stats = outputs.scheduler_stats
        loads.append((stats.num_running_reqs, stats.num_waiting_reqs))
    # r0 ends in step 1, r1 in step 2, r2 enters in step 2 and ends in step 4.
    assert loads == [(1, 1), (1, 0), (1, 0), (0, 0)]


def test_a_slot_serves_one_request_after_another(shared: EngineCore) -> None:
    core = engine(max_num_seqs=1)
    requests = [request(f"r{index}", [index + 1] * (6 - index), max_tokens=3) for index in range(4)]
    one_slot = run_to_end(core, requests)
    assert one_slot == run_to_end(shared, requests)


# Abort


def assert_empty(core: EngineCore) -> None:
    assert not core.has_work
    assert (core.scheduler.num_running, core.scheduler.num_waiting) == (0, 0)
    share_inputs = core.runner.share_inputs
    assert share_inputs["req_ids"] == [""] * share_inputs.max_num_seqs
    assert share_inputs["logits_processors_args"] == [{}] * share_inputs.max_num_seqs
    assert share_inputs["stop_flags"].all()


def test_aborting_a_waiting_request_drops_it() -> None:
    core = engine(max_num_seqs=1)
    core.add(request("first", [1], max_tokens=3))
    core.step()
    for name in ("waiting", "next"):
        core.add(request(name, [2], max_tokens=1))
    core.abort(["waiting"])
    assert set(run_to_end(core)) == {"first", "next"}
    assert_empty(core)


def test_aborting_a_request_that_was_never_stepped_leaves_no_work() -> None:
    core = engine()
    core.add(request("r", [1]))
    core.abort(["r"])
    assert_empty(core)


def test_aborting_a_running_request_frees_its_slot_and_blocks_and_leaves_the_others_alone() -> None:
    core = engine(max_num_seqs=2)
    free = core.blocks.num_free
    kept = request("kept", [1, 2, 3], max_tokens=8)
    alone = run_one(core, kept)
    core.add(request("aborted", [4, 5], logits_processors_args=forcing(9)))
    core.add(kept)
    ran = Ran()
    for _ in range(3):
        ran.take(core.step().steps[1])
    core.abort(["aborted"])
    assert core.runner.share_inputs["req_ids"] == ["", "kept"]
    assert core.runner.share_inputs["logits_processors_args"][0] == {}
    later = run_to_end(core, [request("later", [6], max_tokens=2)])
    ran.token_ids += later["kept"].token_ids
    assert ran.token_ids == alone.token_ids
    assert set(later) == {"kept", "later"}
    assert core.blocks.num_free == free
    assert_empty(core)


def test_aborting_everybody_leaves_an_engine_that_works() -> None:
    core = engine(max_num_seqs=2)
    names = [f"r{index}" for index in range(5)]
    for name in names:
        core.add(request(name, [1, 2]))
    core.step()
    core.abort(names)
    assert_empty(core)
    assert run_one(core, request("after", [1], max_tokens=2)).finish_reason == "length"


def test_aborting_requests_that_are_not_there_changes_nothing(shared: EngineCore) -> None:
    shared.abort([])
    shared.abort(["nobody"])
    made = request("r", [1], max_tokens=2)
    shared.add(made)
    shared.step()
    shared.abort(["nobody", "r0"])
    assert len(run_to_end(shared)["r"].token_ids) == 1
    shared.abort(["r"])
    assert_empty(shared)


def test_the_load_between_steps_carries_the_processors_state() -> None:
    engine = tiny_engine(["LogitBiasLogitsProcessor"])
    engine.runner.chain.stats["LogitBiasLogitsProcessor"].state = "quarantined"
    assert [each.state for each in engine.load().processors or []] == ["quarantined"]
    engine.reset_processor("LogitBiasLogitsProcessor")
    assert [each.state for each in engine.load().processors or []] == ["ok"]


# Pieces, shared beginnings and preemption leave a request's tokens as they are


PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2]


def all_kinds(prompt: list[int] = PROMPT, max_tokens: int = 8) -> list[AddRequest]:
    """One greedy, one seeded, one with a bias."""
    drawn = {"temperature": 1.2, "seed": 7, "top_k": 50}
    return [
        request("greedy", prompt, max_tokens=max_tokens),
        request("drawn", prompt, max_tokens=max_tokens, **drawn),
        request("biased", prompt, max_tokens=max_tokens, logits_processors_args={"logit_bias": {9: 3.0}}),
    ]


@pytest.fixture(scope="module")
def alone() -> dict[str, Ran]:
    """Each of `all_kinds` by itself, computed at once and with nothing known before."""
    core = engine(max_num_seqs=1, enable_prefix_caching=False)
    return {made.request_id: run_one(core, made) for made in all_kinds()}


@pytest.mark.parametrize("size", range(1, len(PROMPT) + 1))
def test_a_prompt_in_pieces_of_any_size_gives_the_same_tokens(alone: dict[str, Ran], size: int) -> None:
    core = engine(max_num_batched_tokens=size, enable_prefix_caching=size % 2 == 0)
    assert {made.request_id: run_one(core, made) for made in all_kinds()} == alone
    core = engine(max_num_batched_tokens=size, enable_prefix_caching=size % 2 == 1)
    assert run_to_end(core, all_kinds()) == alone


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 8, 16])
def test_a_known_beginning_gives_the_same_tokens(alone: dict[str, Ran], block_size: int) -> None:
    core = engine(block_size=block_size)
    for made in all_kinds():
        assert run_one(core, made) == alone[made.request_id]
    hits = core.blocks.num_hit_tokens
    # The last token is always computed.
    usable = len(PROMPT) - 1
    assert hits == 2 * usable
    assert run_to_end(core, all_kinds()) == alone
    assert core.blocks.num_hit_tokens == hits + 3 * usable


@pytest.mark.parametrize("caching", [True, False])
def test_preempted_requests_give_the_same_tokens(alone: dict[str, Ran], caching: bool) -> None:
    core = engine(num_blocks=1 + MAX_MODEL_LEN // 4 + 4, enable_prefix_caching=caching)
    others = [request(f"other{i}", [100 + i], max_tokens=30) for i in range(4)]
    ran = run_to_end(core, [*others[:1], *all_kinds(), *others[1:]])
    assert {name: ran[name] for name in alone} == alone
    assert core.scheduler.num_preemptions > 0
    assert core.blocks.num_free == core.blocks.num_total
    assert_empty(core)


@pytest.mark.parametrize("when", range(1, 12))
def test_a_request_preempted_at_any_time_gives_the_same_tokens(alone: dict[str, Ran], when: int) -> None:
    core = engine(max_num_batched_tokens=5)
    ran = {name: Ran() for name in alone}
    for made in all_kinds():
        core.add(made)
    steps = 0
    while core.has_work:
        for step in core.step().steps:
            ran[step.request_id].take(step)
        steps += 1
        if steps % when == 0 and steps < 40 and core.scheduler.num_running:
            core.scheduler.preempt()
    assert ran == alone


def test_the_next_turn_of_a_chat_finds_the_answer_of_the_last() -> None:
    core = engine()
    first = run_one(core, request("first", PROMPT, max_tokens=8)).token_ids
    turn = [*PROMPT, *first, 40, 41]
    core.add(request("second", turn, max_tokens=1))
    (step,) = core.step().steps
    # All but the last token of the answer was computed: 24 of 25 tokens, six blocks of four.
    assert step.num_cached_tokens == 24
    cold = engine(enable_prefix_caching=False)
    assert step.token_ids == run_one(cold, request("second", turn, max_tokens=1)).token_ids


def test_cached_tokens_are_told_once_with_the_first_token() -> None:
    core = engine()
    told: dict[str, list[int | None]] = {}
    for name in ("cold", "warm"):
        core.add(request(name, PROMPT, max_tokens=3))
        while core.has_work:
            for step in core.step().steps:
                told.setdefault(step.request_id, []).append(step.num_cached_tokens)
    assert told == {"cold": [0, None, None], "warm": [16, None, None]}


def test_the_first_time_in_a_slot_is_told_once_with_the_first_token() -> None:
    core = engine(max_num_seqs=1)
    core.add(request("first", PROMPT, max_tokens=3))
    core.add(request("second", PROMPT, max_tokens=3))
    before = time.monotonic()
    told: dict[str, list[float | None]] = {}
    while core.has_work:
        for step in core.step().steps:
            told.setdefault(step.request_id, []).append(step.scheduled_at)
        if core.scheduler.num_running and len(told.get("second", ())) == 1:
            core.scheduler.preempt()
    first, second = (moments[0] for moments in told.values())
    assert told == {"first": [first, None, None], "second": [second, None, None]}
    assert first is not None
    assert second is not None
    assert before <= first < second <= time.monotonic()


def test_a_step_tells_the_state_of_the_cache() -> None:
    core = engine(max_num_seqs=2, num_blocks=1 + 8)
    core.add(request("a", PROMPT, max_tokens=1))
    core.step()
    core.add(request("b", PROMPT, max_tokens=2))
    stats = core.step().scheduler_stats
    assert (stats.kv_cache_blocks_used, stats.kv_cache_blocks_total) == (5, 8)
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits, stats.num_preemptions) == (34, 16, 0)
    core.scheduler.preempt()
    core.abort(["b"])
    stats = core.load().scheduler_stats
    assert (stats.kv_cache_blocks_used, stats.num_preemptions) == (0, 1)


def test_a_cache_without_room_for_one_whole_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="num_blocks: 8 blocks of 4 tokens"):
        engine(num_blocks=8)
    assert len(run_one(engine(num_blocks=9), request("r", [1])).token_ids) == MAX_MODEL_LEN - 1


def test_a_step_that_only_computes_a_part_of_a_prompt_yields_nothing() -> None:
    core = engine(max_num_batched_tokens=7)
    core.add(request("r", PROMPT, max_tokens=1))
    assert [len(core.step().steps) for _ in range(3)] == [0, 0, 1]
    assert_empty(core)


@pytest.mark.parametrize("steps", range(4))
def test_a_request_is_aborted_in_the_middle_of_its_prompt(steps: int) -> None:
    core = engine(max_num_batched_tokens=4)
    core.add(request("r", PROMPT))
    core.add(request("next", [1], max_tokens=1))
    for _ in range(steps):
        core.step()
    core.abort(["r"])
    assert core.blocks.num_free == core.blocks.num_total
    assert set(run_to_end(core)) == {"next"}
    assert_empty(core)


def test_a_preempted_request_is_aborted() -> None:
    core = engine()
    core.add(request("r", PROMPT))
    core.step()
    core.scheduler.preempt()
    core.abort(["r"])
    assert_empty(core)
    assert core.blocks.num_free == core.blocks.num_total


def test_a_failed_request_in_the_middle_of_its_prompt_leaves_nothing_behind() -> None:
    core = engine(max_num_batched_tokens=4)
    core.runner.chain.stats["YourLogitsProcessor"].state = "quarantined"
    core.add(request("short", [1], max_tokens=9))
    core.step()
    args = {"enable_your_logits_processor": True}
    core.add(request("long", PROMPT, logits_processors_args=args))
    errors = [step for _ in range(9) if core.has_work for step in core.step().steps if step.error]
    assert [step.request_id for step in errors] == ["long"]
    assert errors[0].unavailable
    assert_empty(core)
