"""What a request's processor sees does not depend on whether the request was preempted or held back.

The engine does not preempt or cut prompts by itself yet; these tests do with its parts what it will do.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import paddle
import pytest
import support.hash_bias as hash_bias
from support.hash_bias import Native, RequestThree, RequestTwo, Vllm
from support.hash_bias_torch import HuggingFace, torch_vllm_classes, vllm_stand_ins
from support.sequences import request
from support.tiny import tiny_fd_config

from fastdeploy_lp.config import spec_of
from fastdeploy_lp.logits_processor import LogitsProcessorChain, Selection, load_processors
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.worker.engine_core import EngineCore

DIALECTS = [Native, Vllm, RequestTwo, RequestThree, hash_bias.Plugin, HuggingFace]
LENGTH = 8


@pytest.fixture
def torch_classes() -> Iterator[list[type]]:
    with vllm_stand_ins():
        yield torch_vllm_classes()


def engine_with(cls: type) -> tuple[EngineCore, str]:
    """An engine with this processor, and the processor's name."""
    config = tiny_fd_config(max_num_seqs=3, max_model_len=40)
    spec = "support.hash_bias:PLUGIN" if cls is hash_bias.Plugin else spec_of(cls)
    declared = load_processors([spec], {spec: cls} if cls is not hash_bias.Plugin else {})
    return EngineCore(config, LogitsProcessorChain(declared, config)), declared[0].name


def requests_for(name: str) -> list[AddRequest]:
    """Five for three slots, every second one using the processor so that it decides each token."""
    chosen = [Selection(named={name: {"hash_bias": [17 * index, 1000.0]}}) for index in range(5)]
    return [
        request(
            f"r{index}",
            [index + 1, 2 * index + 5],
            max_tokens=LENGTH,
            selection=chosen[index] if index % 2 == 0 else None,
        )
        for index in range(5)
    ]


def preempt(engine: EngineCore, request_id: str) -> None:
    """Take a running request's slot and blocks; it waits again and computes its tokens anew."""
    sequence = next(each for each in engine.scheduler.running() if each.request_id == request_id)
    engine.runner.leave(sequence.slot)
    engine.scheduler.release(sequence)
    sequence.num_computed = 0
    engine.scheduler.add(sequence)


def tokens_of(engine: EngineCore, requests: Sequence[AddRequest], rng: random.Random | None = None) -> dict[str, Any]:
    """Every request's tokens; with `rng`, running requests are preempted now and then."""
    tokens: dict[str, list[int]] = {each.request_id: [] for each in requests}
    for each in requests:
        engine.add(each)
    preempted = 0
    while engine.has_work:
        for step in engine.step().steps:
            tokens[step.request_id] += step.token_ids
        running = [each.request_id for each in engine.scheduler.running()]
        if rng is not None and running and preempted < 20 and rng.random() < 0.5:
            preempt(engine, rng.choice(running))
            preempted += 1
    assert rng is None or preempted > 2
    return tokens


def check_preemption(cls: type) -> None:
    engine, name = engine_with(cls)
    calm = tokens_of(engine, requests_for(name))
    assert all(len(each) == LENGTH for each in calm.values())
    for seed in range(3):
        engine, name = engine_with(cls)
        assert tokens_of(engine, requests_for(name), random.Random(seed)) == calm


@pytest.mark.parametrize("cls", DIALECTS)
def test_a_preempted_request_comes_back_with_its_processors_state(cls: type) -> None:
    check_preemption(cls)


@pytest.mark.parametrize("which", [0, 1], ids=["in place", "copies"])
def test_a_preempted_request_comes_back_to_a_torch_processor(torch_classes: list[type], which: int) -> None:
    check_preemption(torch_classes[which])


@pytest.mark.parametrize("cls", DIALECTS)
def test_a_request_in_the_middle_of_its_prompt_has_no_row_and_misses_no_token(cls: type) -> None:
    """As in a chunked prefill: it holds a slot below others, and they go on for three steps without it."""
    engine, name = engine_with(cls)
    calm = tokens_of(engine, requests_for(name)[:3])
    engine, name = engine_with(cls)
    for each in requests_for(name)[:3]:
        engine.add(each)
    for sequence in engine.scheduler.admit():
        engine.runner.enter(sequence)
    held_back, *others = engine.scheduler.running()
    with paddle.no_grad():
        for _ in range(3):
            result = engine.runner.execute(others)
            assert result.failures == {}
            for sequence, token in zip(others, result.tokens.tolist(), strict=True):
                sequence.append(token)
            engine.scheduler.running()  # gives blocks for the new tokens
    assert held_back.output_token_ids == []
    tokens = {each.request_id: list(each.output_token_ids) for each in (held_back, *others)}
    while engine.has_work:
        for step in engine.step().steps:
            tokens[step.request_id] += step.token_ids
    assert tokens == calm
