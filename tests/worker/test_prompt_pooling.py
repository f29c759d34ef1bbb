"""Pooled prompts through the engine on tiny models: right, the same bits in any company, and never sampled."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from support.reference_decoder import reference_hidden
from support.sequences import Ran, pooling, request, run_to_end, tiny_engine
from support.tiny import tiny_fd_config

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessor
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.model_executor.loader.weights import open_weights
from fastdeploy_lp.model_executor.models.dimensions import Dimensions
from fastdeploy_lp.model_executor.models.llama import LlamaForCausalLM
from fastdeploy_lp.model_executor.ops import compiled_ops
from fastdeploy_lp.request.pooling_params import POOLING_TYPES, TOKEN_POOLING, PoolingParams
from fastdeploy_lp.worker.engine_core import EngineCore

MODEL = "tiny-llama"
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2]
MAX_MODEL_LEN = 32
KINDS = (*POOLING_TYPES, TOKEN_POOLING)


def engine(**config: Any) -> EngineCore:
    return tiny_engine(**{"max_num_seqs": 4, "max_model_len": MAX_MODEL_LEN, **config})


def reference(prompt: list[int]) -> np.ndarray:
    """Hidden states [tokens, hidden_size] of a prompt in plain numpy."""
    config = tiny_fd_config(MODEL).model_config
    dims = Dimensions.from_hf_config(config.hf_config)
    with open_weights([Path(config.directory) / "model.safetensors"]) as weights:
        parts = LlamaForCausalLM.read_weights(weights, dims, config.hf_config)
        return reference_hidden(parts, dims, np.array(prompt))


def pooled_prompts(count: int) -> list[AddRequest]:
    rng = random.Random(3)
    return [
        pooling(f"p{i}", [rng.randrange(512) for _ in range(rng.choice([1, 3, 4, 5, 16, 31, 32]))], KINDS[i % 3])
        for i in range(count)
    ]


def generating(count: int) -> list[AddRequest]:
    """Some greedy, some drawn, some with logprobs, of the prompt as well."""
    rng = random.Random(4)
    made = []
    for i in range(count):
        sampling: dict[str, Any] = {"temperature": 1.1, "seed": i, "top_k": 40} if i % 2 else {}
        if i % 3 == 0:
            sampling |= {"logprobs": 2, "prompt_logprobs": 1}
        prompt = [rng.randrange(512) for _ in range(rng.choice([1, 5, 11, 20]))]
        made.append(request(f"g{i}", prompt, max_tokens=rng.randrange(2, 9), **sampling))
    return made


@pytest.mark.parametrize("size", [1, 5, 64])
def test_vectors_are_those_of_plain_numpy(executor: str, size: int) -> None:
    core = engine(max_num_batched_tokens=size)
    assert (compiled_ops() is None) == (executor == "paddle")
    prompts = [PROMPT, PROMPT[:1], PROMPT + PROMPT[:15]]
    for kind in KINDS:
        ran = run_to_end(core, [pooling(f"{i}", prompt, kind) for i, prompt in enumerate(prompts)])
        for i, prompt in enumerate(prompts):
            hidden = reference(prompt)
            expected = {"mean": hidden.mean(axis=0), "last": hidden[-1], TOKEN_POOLING: hidden}[kind]
            np.testing.assert_allclose(ran[f"{i}"].vector, expected.reshape(-1), atol=2e-5)
            assert (ran[f"{i}"].token_ids, ran[f"{i}"].finish_reason) == ([], "stop")


@pytest.fixture(scope="module")
def alone() -> dict[str, Ran]:
    """Everybody in an engine without company and prefix cache."""
    core = engine(max_num_seqs=1, enable_prefix_caching=False, max_num_batched_tokens=64)
    return {made.request_id: run_to_end(core, [made])[made.request_id] for made in everybody()}


def everybody() -> list[AddRequest]:
    mixed: list[AddRequest] = [*pooled_prompts(14), *generating(12)]
    random.Random(5).shuffle(mixed)
    return mixed


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 33, 64])
@pytest.mark.parametrize("caching", [True, False])
def test_a_crowd_of_both_kinds_changes_nobodys_bits(alone: dict[str, Ran], size: int, caching: bool) -> None:
    core = engine(max_num_batched_tokens=size, enable_prefix_caching=caching)
    assert run_to_end(core, everybody()) == alone
    assert run_to_end(core, reversed(everybody())) == alone


@pytest.mark.parametrize("when", range(1, 8))
def test_a_prompt_that_is_preempted_starts_over_and_gives_the_same_bits(alone: dict[str, Ran], when: int) -> None:
    core = engine(max_num_batched_tokens=5)
    ran = {name: Ran() for name in alone}
    for made in everybody():
        core.add(made)
    steps = 0
    while core.has_work:
        for step in core.step().steps:
            ran[step.request_id].take(step)
        steps += 1
        if steps % when == 0 and steps < 60 and core.scheduler.num_running:
            core.scheduler.preempt()
    assert ran == alone
    assert core.scheduler.num_preemptions > 5
    assert core.blocks.num_free == core.blocks.num_total


def test_running_out_of_blocks_is_survived(alone: dict[str, Ran]) -> None:
    core = engine(num_blocks=1 + MAX_MODEL_LEN // 4 + 2)
    assert run_to_end(core, everybody()) == alone


# The prefix cache


def cached_tokens(core: EngineCore, added: AddRequest) -> int | None:
    core.add(added)
    found = None
    while core.has_work:
        for step in core.step().steps:
            found = step.num_cached_tokens if step.num_cached_tokens is not None else found
    return found


def test_the_last_token_is_pooled_from_a_known_beginning_and_all_tokens_never_are() -> None:
    core = engine()
    assert [cached_tokens(core, pooling("cold", PROMPT, "last")), core.blocks.num_hit_tokens] == [0, 0]
    assert cached_tokens(core, pooling("warm", PROMPT, "last")) == 16
    assert cached_tokens(core, pooling("mean", PROMPT, "mean")) == 0
    assert cached_tokens(core, pooling("all", PROMPT, TOKEN_POOLING)) == 0
    assert cached_tokens(core, request("tokens", PROMPT, max_tokens=1)) == 16


def test_what_a_pooled_prompt_computed_is_shared() -> None:
    core = engine()
    assert cached_tokens(core, pooling("mean", PROMPT, "mean")) == 0
    assert cached_tokens(core, request("tokens", PROMPT, max_tokens=1)) == 16


# Slots and processors


class Watches(LogitsProcessor):
    """Notes which requests have rows."""

    seen: list[list[str]] = []  # noqa: RUF012 - the engine makes the instance, the test reads the class

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        active = np.flatnonzero(~share_inputs["stop_flags"][:, 0])
        self._names = [share_inputs["req_ids"][slot] for slot in active]
        assert all(share_inputs["req_ids"][slot].startswith("g") for slot in active)

    def apply(self, logits: paddle.Tensor) -> paddle.Tensor:
        assert logits.shape[0] == len(self._names)
        self.seen.append(self._names)
        return logits


def test_the_chain_never_sees_a_row_of_a_pooled_prompt(monkeypatch: pytest.MonkeyPatch, alone: dict[str, Ran]) -> None:
    monkeypatch.setattr(Watches, "seen", [])
    core = engine(processors=[Watches], max_num_batched_tokens=16)
    ran = run_to_end(core, everybody())
    assert {name: each.token_ids for name, each in ran.items()} == {n: each.token_ids for n, each in alone.items()}
    assert {name for names in Watches.seen for name in names} == {name for name in alone if name.startswith("g")}
    assert core.runner.chain.failures == {}


def test_pooled_prompts_alone_leave_chain_and_sampler_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watches, "seen", [])
    core = engine(processors=[Watches])
    core.runner.chain.stats["Watches"].state = "quarantined"
    run_to_end(core, pooled_prompts(6))
    assert Watches.seen == []
    assert core.runner.share_inputs["stop_flags"].all()


def test_a_slot_is_taken_while_the_prompt_is_computed_and_free_after_it() -> None:
    core = engine(max_num_seqs=1, max_num_batched_tokens=6)
    core.add(pooling("r", PROMPT))
    core.add(pooling("next", [1]))
    loads = []
    while core.has_work:
        outputs = core.step()
        stats = outputs.scheduler_stats
        loads.append((stats.num_running_reqs, stats.num_waiting_reqs, [step.request_id for step in outputs.steps]))
    assert loads == [(1, 1, []), (1, 1, []), (0, 1, ["r"]), (0, 0, ["next"])]
    assert core.blocks.num_free == core.blocks.num_total
    assert core.runner.share_inputs["req_ids"] == [""]


@pytest.mark.parametrize("steps", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_is_aborted_at_any_time(alone: dict[str, Ran], steps: int, kind: str) -> None:
    core = engine(max_num_batched_tokens=4)
    core.add(pooling("r", PROMPT, kind))
    for _ in range(steps):
        core.step()
    core.abort(["r"])
    assert core.blocks.num_free == core.blocks.num_total
    (first, *_) = pooled_prompts(1)
    assert run_to_end(core, [first]) == {"p0": alone["p0"]}


def test_a_prompt_may_fill_the_whole_context() -> None:
    full = list(range(MAX_MODEL_LEN))
    ran = run_to_end(engine(), [pooling("r", full)])
    np.testing.assert_allclose(ran["r"].vector, reference(full).mean(axis=0), atol=2e-5)


def test_hidden_states_that_are_not_finite_end_the_request_alone() -> None:
    core = engine()
    forward = core.runner._model.forward

    class Broken:
        """The model with a NaN in the first row that is asked for."""

        compute_logits = core.runner._model.compute_logits

        def forward(self, chunks: Any) -> paddle.Tensor:
            hidden = forward(chunks)
            hidden[0] = float("nan")
            return hidden

    core.runner._model = Broken()  # type: ignore[assignment]
    core.add(pooling("bad", [1, 2]))
    core.add(pooling("good", [3, 4]))
    bad, good = core.step().steps
    assert (bad.request_id, bad.pooled, good.error) == ("bad", None, None)
    assert "not finite" in (bad.error or "")
    assert not core.has_work


def test_a_kind_of_pooling_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="pooling: None is none of mean, last, all"):
        engine().add(AddRequest("r", [1], pooling=PoolingParams()))
