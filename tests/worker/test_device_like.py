"""The whole engine as it runs on a GPU, on a stand-in for one: the same tokens as on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.device_like import DeviceLikePlatform, EmulatedBlockAttention, device_like
from support.sequences import Ran, pooling, request, run_to_end, tiny_engine

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
