"""A second model drafts: the output is that of steps of one token, and its cache follows the sequences."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from support.sequences import Ran, chain_of, request, run_to_end, tiny_engine
from support.tiny import tiny_fd_config

from fastdeploy_lp.config.speculation import DRAFT_MODEL, Speculation
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.stats import DraftStats
from fastdeploy_lp.worker.drafters.draft_model import DraftModelDrafter
from fastdeploy_lp.worker.drafters.drafting import Drafting
from fastdeploy_lp.worker.drafters.step_costs import StepCosts
from fastdeploy_lp.worker.engine_core import EngineCore

SAME, OTHER = "tiny-llama", "tiny-qwen2"
PREFIX = [(7 * place) % 512 for place in range(1, 19)]
CONFIGS: list[dict[str, Any]] = [
    {},
    {"max_num_seqs": 3},
    # Few enough that sequences are preempted.
    {"num_blocks": 18},
    {"num_blocks": 18, "enable_prefix_caching": False},
    # Prompts are longer than a step, of the served model as of the draft model.
    {"max_num_batched_tokens": 13},
    # Drafts often pass the end of a sequence's blocks, or never.
    {"block_size": 1},
    {"block_size": 2},
    {"block_size": 16},
]


def engine(model: str | None, *, count: int = 5, adaptive: bool = False, **config: Any) -> EngineCore:
    if model is None:
        return tiny_engine(**config)
    settings = Speculation(DRAFT_MODEL, num_speculative_tokens=count, adaptive=adaptive, model=model)
    return tiny_engine(speculation=settings, **config)


def greedy(count: int) -> list[AddRequest]:
    """Requests that end with their length, of which some begin alike."""
    rng, made = random.Random(5), []
    for index in range(count):
        own = [rng.randrange(512) for _ in range(rng.choice([1, 3, 4, 9]))]
        begins = PREFIX[: rng.choice([0, 8, 16, 18])]
        made.append(request(f"r{index}", begins + own, max_tokens=rng.randrange(2, 24)))
    return made


def drafted(core: EngineCore) -> DraftStats:
    (stats,) = core.load().scheduler_stats.drafts
    assert stats.kind == DRAFT_MODEL
    return stats


@pytest.fixture(scope="module")
def plain() -> dict[str, Ran]:
    return run_to_end(engine(None), greedy(24))


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_draft_of_the_served_model_itself_is_right(plain: dict[str, Ran], config: dict[str, Any]) -> None:
    core = engine(SAME, **config)
    assert run_to_end(core, greedy(24)) == plain
    stats = drafted(core)
    assert stats.accepted == stats.tokens > 50
    assert ("num_blocks" in config) == (core.scheduler.num_preemptions > 0)


@pytest.mark.parametrize("config", CONFIGS[2:5], ids=str)
@pytest.mark.parametrize("model", [SAME, OTHER])
def test_wrong_drafts_change_nothing(config: dict[str, Any], model: str) -> None:
    """Drafts are greedy, and half of the requests draw; of another random model, nearly all drafts are wrong."""
    rng, made = random.Random(7), []
    for index, each in enumerate(greedy(12)):
        sampling: dict[str, Any] = {} if index % 2 else {"temperature": 0.3, "seed": index}
        stops = rng.sample(range(512), 9)
        prompt = each.prompt_token_ids
        made.append(request(f"r{index}", prompt, max_tokens=14, logprobs=1, stop_token_ids=stops, **sampling))
    core = engine(model, **config)
    assert run_to_end(core, made) == run_to_end(engine(None, **config), made)
    stats = drafted(core)
    assert (stats.accepted > 0) == (model == SAME)
    assert stats.accepted < stats.tokens


def test_a_cache_that_fell_behind_catches_up(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, made = 0, []

    def passes(_: DraftModelDrafter) -> StepCosts:
        # Drafts pay off in every second period of five steps.
        return StepCosts({1: 0.0 if steps // 5 % 2 else 1e9})

    monkeypatch.setattr(DraftModelDrafter, "passes", property(passes, lambda _, __: None), raising=False)
    core = engine(SAME, adaptive=True, max_num_batched_tokens=20)
    drafting: Drafting = core.worker.model_runner._drafting  # type: ignore[attr-defined]
    drafting.costs = StepCosts({1: 1.0, 64: 1.1})
    for each in greedy(24):
        core.add(each)
    while core.has_work:
        if steps == 7:
            core.abort(["r1"])
        made.append(sum(step.drafted for step in core.step().steps))
        assert steps // 5 % 2 or not made[-1]
        steps += 1
    stats = drafted(core)
    assert stats.accepted == stats.tokens == sum(made) > 20


def test_a_sequence_longer_than_the_draft_models_context_has_no_drafts() -> None:
    made = request("r", PREFIX, max_tokens=40)
    expected = run_to_end(engine(None), [made])
    config = tiny_fd_config(speculation=Speculation(DRAFT_MODEL, model=SAME, adaptive=False))
    assert config.draft_model_config is not None
    short = replace(config, draft_model_config=replace(config.draft_model_config, max_model_len=len(PREFIX) + 9))
    core = EngineCore(short, chain_of([], short))
    assert run_to_end(core, [made]) == expected
    stats = drafted(core)
    # A token of the model's last position can be drafted, too.
    assert stats.accepted == stats.tokens
    assert 5 < stats.tokens <= 9


def test_a_configuration_without_the_model_is_refused() -> None:
    config = replace(tiny_fd_config(speculation=Speculation(DRAFT_MODEL, model=SAME)), draft_model_config=None)
    with pytest.raises(ValueError, match="method: draft_model needs a draft_model_config"):
        EngineCore(config, chain_of([], config))
