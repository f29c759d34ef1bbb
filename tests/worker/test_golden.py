"""The reference's greedy tokens from the whole engine on the default model in float32, whatever else goes on in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.sequences import Ran, request, run_to_end

from fastdeploy_lp.logits_processor import LogitsProcessorChain
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.startup.engine_args import EngineArgs
from fastdeploy_lp.worker.engine_core import EngineCore

pytestmark = pytest.mark.slow
Cases = list[dict[str, Any]]
MAX_TOKENS = 16
# Enough that sequences outgrow the blocks of a tight engine.
MANY_TOKENS = 32
NEIGHBOURS = 36


def engine(**options: Any) -> EngineCore:
    # Which sequences are preempted does not depend on the machine's speed.
    args = EngineArgs(model="smollm2-135m", **{"max_model_len": 256, "prompt_step_seconds": 0.0, **options})
    fd_config = args.create_fd_config(show_progress=False)
    return EngineCore(fd_config, LogitsProcessorChain([], fd_config))


@pytest.fixture(scope="module")
def tight(request: pytest.FixtureRequest) -> EngineCore:
    """With prefix caching or without, as the parameter says, and fewer blocks than eight sequences need."""
    few: dict[str, Any] = {"max_model_len": 128, "block_size": 16, "num_gpu_blocks_override": 18}
    return engine(enable_prefix_caching=request.param, **few)


def golden_requests(cases: Cases, name: str = "golden", max_tokens: int = MAX_TOKENS) -> list[AddRequest]:
    return [request(f"{name}-{i}", case["prompt_ids"], max_tokens=max_tokens) for i, case in enumerate(cases)]


def assert_golden(ran: dict[str, Ran], cases: Cases, name: str = "golden", max_tokens: int = MAX_TOKENS) -> None:
    assert [ran[f"{name}-{i}"].token_ids for i in range(len(cases))] == [
        case["output_ids"][:max_tokens] for case in cases
    ]


BUDGETS = [1, 17, *(pytest.param(budget, marks=pytest.mark.long) for budget in (2, 3, 7, 16, 31, 64))]


@pytest.mark.parametrize("tight", [False], indirect=True)
@pytest.mark.parametrize("budget", BUDGETS)
def test_prompts_cut_anywhere(
    tight: EngineCore, golden_cases: Cases, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One token a step takes as many steps as there are tokens: the two shortest prompts are enough of them.
    cases = sorted(golden_cases, key=lambda case: len(case["prompt_ids"]))[: 2 if budget == 1 else None]
    max_tokens = MAX_TOKENS // 2 if budget == 1 else MAX_TOKENS
    monkeypatch.setattr(tight.scheduler, "_budget", budget)
    ran = run_to_end(tight, golden_requests(cases, max_tokens=max_tokens))
    assert_golden(ran, cases, max_tokens=max_tokens)


@pytest.mark.parametrize("tight", [True], indirect=True)
def test_alone_and_with_a_warm_prefix_cache(tight: EngineCore, golden_cases: Cases) -> None:
    cases = golden_cases[::3]
    for name in ("cold", "warm"):
        hits = tight.blocks.num_hit_tokens
        ran: dict[str, Ran] = {}
        for each in golden_requests(cases, name):
            ran |= run_to_end(tight, [each])
        assert_golden(ran, cases, name)
    assert tight.blocks.num_hit_tokens - hits >= 16 * len(cases)


def test_in_a_crowd_whose_members_join_and_leave(golden_cases: Cases) -> None:
    """32 slots; neighbours of random prompts and lengths, sampled and greedy, some of them aborted in the middle."""
    random = np.random.default_rng(7)
    one, cases = engine(max_num_seqs=32), golden_cases[1::2]
    ran: dict[str, Ran] = {}
    waiting = [
        request(
            f"neighbour-{i}",
            random.integers(3, 49152, random.integers(1, 12)).tolist(),
            max_tokens=int(random.integers(1, 16)),
            temperature=float(i % 2),
            seed=i,
            ignore_eos=True,
        )
        for i in range(NEIGHBOURS)
    ]
    for at, golden in zip(range(12, NEIGHBOURS, 2), golden_requests(cases), strict=False):
        waiting.insert(at, golden)
    for added in waiting[:32]:
        one.add(added)
    waiting = waiting[32:]
    while one.has_work or waiting:
        for added in waiting[: random.integers(0, 3)]:
            one.add(added)
            waiting.remove(added)
        if random.random() < 0.1:
            one.abort([f"neighbour-{random.integers(NEIGHBOURS)}"])
        for step in one.step().steps:
            ran.setdefault(step.request_id, Ran()).take(step)
    assert_golden(ran, cases)
    assert one.blocks.num_used == 0


@pytest.mark.parametrize("tight", [True, False], indirect=True)
def test_preempted_and_resumed(tight: EngineCore, golden_cases: Cases) -> None:
    before = tight.scheduler.num_preemptions
    ran = run_to_end(tight, golden_requests(golden_cases, max_tokens=MANY_TOKENS))
    assert tight.scheduler.num_preemptions > before
    assert_golden(ran, golden_cases, max_tokens=MANY_TOKENS)
