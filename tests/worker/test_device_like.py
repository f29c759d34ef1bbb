"""The whole engine as it runs on a GPU, on a stand-in for one: the same tokens as on the CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.device_like import DeviceLikePlatform, EmulatedBlockAttention, device_like
from support.sequences import Ran, chain_of, pooling, request, run_to_end, tiny_engine
from support.tiny import tiny_fd_config

from fastdeploy_lp.logits_processor import Selection
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.model_executor.models.decoder import DecoderForCausalLM
from fastdeploy_lp.model_executor.models.paddle_decoder import PaddleDecoder
from fastdeploy_lp.worker.engine_core import EngineCore
from fastdeploy_lp.worker.model_runner import ModelRunner

BEGINNING = [7, 3, 9, 1, 4, 4, 8, 2, 6, 5, 3, 1]


def crowd() -> list[AddRequest]:
    """Greedy and drawn, with biases, penalties and logprobs; some begin alike; some prompts are pooled."""
    random = np.random.default_rng(5)
    made: list[AddRequest] = []
    for index in range(12):
        tail = random.integers(1, 500, 1 + index % 5).tolist()
        prompt = (BEGINNING if index % 3 else []) + tail
        more: dict[str, Any] = {"temperature": 0.8, "seed": index, "top_p": 0.9} if index % 2 else {}
        if index % 4 == 1:
            more |= {"repetition_penalty": 1.2, "prompt_logprobs": 2, "logprobs": 2}
        bias = Selection(flat={"logit_bias": {index: 3.0}}) if index % 5 == 0 else Selection()
        made.append(request(f"r{index}", prompt, max_tokens=4 + 4 * (index % 5), selection=bias, **more))
    return [*made, pooling("mean", BEGINNING, "mean"), pooling("last", [*BEGINNING, 5], "last")]


def started(**config: Any) -> EngineCore:
    return tiny_engine(["LogitBiasLogitsProcessor"], **config)


def ran_on_the_device(**config: Any) -> tuple[dict[str, Ran], EngineCore, DeviceLikePlatform]:
    with device_like() as platform:
        engine = started(**config)
        return run_to_end(engine, crowd()), engine, platform


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"max_num_batched_tokens": 7},
        {"max_num_seqs": 8, "num_blocks": 20},
        {"enable_prefix_caching": False, "block_size": 16},
    ],
    ids=["plenty", "prompts in chunks", "few blocks", "large blocks"],
)
def test_the_same_tokens_whatever_becomes_of_the_requests(config: dict[str, Any]) -> None:
    expected = run_to_end(started(**config), crowd())
    found, engine, platform = ran_on_the_device(**config)
    assert found.keys() == expected.keys()
    for name, ran in expected.items():
        assert (found[name].token_ids, found[name].finish_reason) == (ran.token_ids, ran.finish_reason), name
        if ran.pooled is not None:
            np.testing.assert_allclose(found[name].vector, ran.vector, atol=1e-4)
    assert platform.repeated > 0
    assert (engine.blocks.num_hit_tokens > 0) is config.get("enable_prefix_caching", True)
    assert (engine.scheduler.num_preemptions > 0) is ("num_blocks" in config)


@pytest.mark.parametrize("name", ["tiny-qwen2", "tiny-qwen3", "tiny-ernie45"])
def test_families_with_biases_and_head_norms(name: str) -> None:
    config = {"name": name, "max_num_batched_tokens": 16}
    expected = run_to_end(started(**config), crowd())
    found, _, platform = ran_on_the_device(**config)
    assert {key: ran.token_ids for key, ran in found.items()} == {key: ran.token_ids for key, ran in expected.items()}
    assert platform.repeated > 0


def test_the_stand_in_runs_what_a_gpu_would() -> None:
    _, engine, platform = ran_on_the_device()
    assert isinstance(engine.runner, ModelRunner)
    model = engine.runner._model
    assert isinstance(model, DecoderForCausalLM)
    assert isinstance(model._executor, PaddleDecoder)
    assert isinstance(model._executor._attention, EmulatedBlockAttention)
    assert type(engine.worker).__name__ == "ProfilingWorker"
    assert engine.runner.share_inputs._shared == set()
    assert platform.repeated > 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("others", [0, 3])
def test_a_row_without_a_token_ends_its_request(temperature: float, others: int) -> None:
    """A GPU finds no infinity as the maximum of such a row, and a draw from it would return token 0."""
    with device_like():
        engine = started()
        engine.add(request("none", [1, 2], temperature=temperature, allowed_token_ids=[4], bad_words_token_ids=[[4]]))
        for index in range(others):
            engine.add(request(f"r{index}", [index + 3], temperature=0.8, max_tokens=2))
        steps = {step.request_id: step for step in engine.step().steps}
    assert steps.pop("none").error == "allowed_token_ids and bad_words left no token that can be sampled"
    assert all(step.error is None for step in steps.values())


def test_logprobs_list_no_token_that_a_mask_rules_out() -> None:
    """A GPU does not find the ids of such tokens."""
    with device_like():
        engine = started(logprobs_mode="processed_logprobs")
        allowed = [4, 9, 30]
        ran = run_to_end(engine, [request("r", [1, 2], max_tokens=3, logprobs=8, allowed_token_ids=allowed)])
    for position in ran["r"].logprobs:
        assert sorted(position.token_ids[1:]) == allowed
        assert np.isfinite(position.logprobs).all()


def test_the_switches_reach_the_device() -> None:
    config = tiny_fd_config()
    config = replace(config, device_config=replace(config.device_config, cuda_graphs=False, pinned_memory=False))
    expected = run_to_end(tiny_engine(), [request("r", [3, 1, 4], max_tokens=5)])
    with device_like() as platform:
        engine = EngineCore(config, chain_of([], config))
        found = run_to_end(engine, [request("r", [3, 1, 4], max_tokens=5)])
    assert found["r"].token_ids == expected["r"].token_ids
    assert (platform.repeated, platform.queue.pinned) == (0, 0)
