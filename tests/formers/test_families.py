"""Families that PaddleFormers computes, against its own forward pass and Hugging Face's; `make test-paddleformers`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("paddleformers.nn", reason="PaddleFormers is not installed; make test-paddleformers installs it")

from formers.through_formers import Own, Served, config_of, hf_logits, make_models, prompts_of
from support.golden import CLEAR_LEAD, Run, assert_close, cases
from support.sequences import Ran, chain_of, request, run_to_end
from support.tiny import GOLDEN

from fastdeploy_lp.worker.engine_core import EngineCore

# PaddleFormers' own.
pytestmark = pytest.mark.filterwarnings("default")

FAMILIES = ("qwen3-moe", "glm4-moe", "gpt-oss", "deepseek-v3", "qwen2-moe", "gemma3", "phi3")
NATIVE = ("tiny-llama", "tiny-llama3-rope", "tiny-qwen2", "tiny-qwen3", "tiny-ernie45", "tiny-phi3")
GREEDY_TOKENS = 12


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that Hugging Face's library made for this run, with what it computes."""
    folder = tmp_path_factory.mktemp("made")
    make_models(folder, *FAMILIES)
    return folder


@cache
def served(folder: Path | str) -> Served:
    return Served(folder)


@cache
def own(folder: Path) -> Own:
    return Own(folder)


@cache
def greedy(folder: Path) -> list[list[int]]:
    return [own(folder).greedy(prompt, GREEDY_TOKENS) for prompt in prompts_of(folder)]


# Right answers


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_paddleformers_and_of_hugging_face(name: str, made: Path) -> None:
    """Prompts of four lengths in one pass; windows of 20 tokens in three of the families."""
    prompts = prompts_of(made / name)
    found = served(made / name).logits(*(Run(prompt, seat) for seat, prompt in enumerate(prompts)))
    for actual, prompt, expected in zip(found, prompts, hf_logits(made / name), strict=True):
        assert_close(actual, own(made / name).logits(prompt))
        assert_close(actual, expected)


@pytest.mark.parametrize("name", NATIVE)
def test_families_of_our_own_give_the_reference_through_it_too(name: str) -> None:
    for case in cases(name):
        (logits,) = served(name).logits(Run(case.prompt, seat=1))
        assert_close(logits, case.logits)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("size", [1, 7, 16, 17, 40])
def test_a_prompt_in_chunks_gives_the_same_logits(name: str, size: int, made: Path) -> None:
    prompt, expected = prompts_of(made / name)[3], hf_logits(made / name)[3]
    starts = range(0, len(prompt), size)
    parts = [served(made / name).logits(Run(prompt[at : at + size], seat=1, start=at))[0] for at in starts]
    assert_close(np.concatenate(parts), expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_sequences_of_mixed_lengths_cut_anywhere_share_a_batch(name: str, made: Path) -> None:
    random = np.random.default_rng(3)
    prompts, expected = prompts_of(made / name), hf_logits(made / name)
    done: list[list[np.ndarray]] = [[] for _ in prompts]
    starts = [0] * len(prompts)
    while open_prompts := [i for i, prompt in enumerate(prompts) if starts[i] < len(prompt)]:
        runs = []
        for i in open_prompts:
            size = int(random.choice([1, 1, 5, 30]))
            runs.append(Run(prompts[i][starts[i] : starts[i] + size], seat=i, start=starts[i]))
            starts[i] += size
        for i, logits in zip(open_prompts, served(made / name).logits(*runs), strict=True):
            done[i].append(logits)
    for parts, logits in zip(done, expected, strict=True):
        assert_close(np.concatenate(parts), logits)


# The engine: tokens are PaddleFormers' own, whatever else runs


def engine(folder: Path, **config: int | bool) -> EngineCore:
    fd_config = config_of(folder, **{"max_num_seqs": 3, "block_size": 4, "max_num_batched_tokens": 16, **config})
    return EngineCore(fd_config, chain_of([], fd_config))


def run(one: EngineCore, folder: Path) -> dict[str, Ran]:
    prompts = prompts_of(folder)
    wanted = [request(str(i), each, max_tokens=GREEDY_TOKENS, ignore_eos=True) for i, each in enumerate(prompts)]
    return run_to_end(one, wanted)


def assert_greedy(ran: dict[str, Ran], folder: Path) -> None:
    assert [ran[str(i)].token_ids for i in range(len(ran))] == greedy(folder)


@pytest.mark.parametrize("name", FAMILIES)
def test_continuous_batching_and_the_prefix_cache_keep_tokens(name: str, made: Path) -> None:
    """Four requests in three slots with prompts in chunks of up to 16 tokens, twice."""
    one = engine(made / name)
    assert_greedy(run(one, made / name), made / name)
    hits = one.blocks.num_hit_tokens
    assert_greedy(run(one, made / name), made / name)
    assert one.blocks.num_hit_tokens - hits > 100


@pytest.mark.parametrize("name", FAMILIES)
def test_preempted_requests_keep_their_tokens(name: str, made: Path) -> None:
    one = engine(made / name, num_blocks=1 + 36, max_num_batched_tokens=64)
    prompt = prompts_of(made / name)[2]
    wanted = [request(str(i), [*prompt, 3 + i], max_tokens=40, ignore_eos=True) for i in range(3)]
    ran = run_to_end(one, wanted)
    assert one.scheduler.num_preemptions > 0
    alone = engine(made / name, max_num_seqs=1, enable_prefix_caching=False)
    for each in wanted:
        assert run_to_end(alone, [each])[each.request_id].token_ids == ran[each.request_id].token_ids


def test_near_ties_are_few(made: Path) -> None:
    """Tokens are compared above, so that a lead must be larger than what two computations may differ by."""
    leads = []
    for name in FAMILIES:
        for prompt, tokens in zip(prompts_of(made / name), greedy(made / name), strict=True):
            best = np.sort(own(made / name).logits([*prompt, *tokens])[len(prompt) - 1 : -1], axis=-1)
            leads.append(float((best[:, -1] - best[:, -2]).min()))
    assert min(leads) > CLEAR_LEAD


# The chain


def test_processors_change_tokens_as_everywhere(made: Path) -> None:
    fd_config = config_of(made / "qwen3-moe", max_num_seqs=3)
    one = EngineCore(fd_config, chain_of(["LogitBiasLogitsProcessor"], fd_config))
    args = {"logit_bias": {9: 100.0}}
    biased = request("biased", [3, 4, 5], max_tokens=3, logits_processors_args=args)
    plain = request("plain", prompts_of(made / "qwen3-moe")[1], max_tokens=GREEDY_TOKENS, ignore_eos=True)
    ran = run_to_end(one, [biased, plain])
    assert ran["biased"].token_ids == [9, 9, 9]
    assert ran["plain"].token_ids == greedy(made / "qwen3-moe")[1]


def test_the_golden_models_of_our_own_are_all_compared() -> None:
    assert set(NATIVE) == {path.name for path in GOLDEN.glob("tiny-*")}
