"""What a request's processor sees does not depend on preemption, drafts, chunked prefill or a shared beginning."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import cycle
from typing import Any

import pytest
import support.hash_bias as hash_bias
from support.drafters import KnowsMost
from support.hash_bias import Mrv2, Native, RequestThree, RequestTwo, Vllm
from support.hash_bias_torch import HuggingFace, torch_slot_keyed_classes, torch_vllm_classes
from support.sequences import Ran, request, run_to_end
from support.stand_ins import vllm_stand_ins
from support.tiny import tiny_fd_config

from fastdeploy_lp.config.option_values import spec_of
from fastdeploy_lp.config.speculation import Speculation
from fastdeploy_lp.logits_processor import LogitsProcessorChain, Selection, load_processors
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.worker.engine_core import EngineCore

DIALECTS = [Native, Vllm, Mrv2, RequestTwo, RequestThree, hash_bias.Plugin, HuggingFace]
TORCH = ["V1 in place", "V1 copies", "slot-keyed in place", "slot-keyed copies"]
LENGTH = 24
MAX_MODEL_LEN = 40
BLOCK_SIZE = 4
ONE_SEQUENCE = 1 + MAX_MODEL_LEN // BLOCK_SIZE


@pytest.fixture
def torch_classes() -> Iterator[list[type]]:
    with vllm_stand_ins():
        yield [*torch_vllm_classes(), *torch_slot_keyed_classes()]


def engine_with(cls: type, **room: Any) -> tuple[EngineCore, str]:
    """An engine with this processor, and the processor's name."""
    config = tiny_fd_config(max_num_seqs=3, max_model_len=MAX_MODEL_LEN, block_size=BLOCK_SIZE, **room)
    spec = "support.hash_bias:PLUGIN" if cls is hash_bias.Plugin else spec_of(cls)
    declared = load_processors([spec], {spec: cls} if cls is not hash_bias.Plugin else {})
    return EngineCore(config, LogitsProcessorChain(declared, config)), declared[0].name


def requests_for(name: str) -> list[AddRequest]:
    """Five for three slots, every second one using the processor so that it decides each token."""
    chosen = [Selection(named={name: {"hash_bias": [17 * index, 1000.0]}}) for index in range(5)]
    return [
        request(
            f"r{index}",
            [index + 1, 2 * index + 5] * (1 + index),
            max_tokens=LENGTH,
            selection=chosen[index] if index % 2 == 0 else None,
        )
        for index in range(5)
    ]


@cache
def calm(cls: type) -> dict[str, Ran]:
    """What the requests get where there is room for all."""
    engine, name = engine_with(cls)
    ran = run_to_end(engine, requests_for(name))
    assert engine.scheduler.num_preemptions == 0
    assert all(len(each.token_ids) == LENGTH for each in ran.values())
    return ran


def check_preemption(cls: type) -> None:
    for caching in (True, False):
        engine, name = engine_with(cls, num_blocks=ONE_SEQUENCE + 4, enable_prefix_caching=caching)
        assert run_to_end(engine, requests_for(name)) == calm(cls)
        assert engine.scheduler.num_preemptions > 2


def check_drafts(cls: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KnowsMost, "outputs", {name: ran.token_ids for name, ran in calm(cls).items()})
    drafts = Speculation("support.drafters:KnowsMost", adaptive=False)
    for num_blocks in (None, ONE_SEQUENCE + 4):
        engine, name = engine_with(cls, num_blocks=num_blocks, speculation=drafts)
        assert run_to_end(engine, requests_for(name)) == calm(cls)
        (counts,) = engine.load().scheduler_stats.drafts
        assert LENGTH < counts.accepted < counts.tokens


@pytest.mark.parametrize("cls", DIALECTS)
def test_a_request_with_drafts_has_its_processors_tokens(cls: type, monkeypatch: pytest.MonkeyPatch) -> None:
    check_drafts(cls, monkeypatch)


@pytest.mark.parametrize("which", range(4), ids=TORCH)
def test_a_request_with_drafts_has_its_torch_processors_tokens(
    torch_classes: list[type], which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_drafts(torch_classes[which], monkeypatch)


@pytest.mark.parametrize("cls", DIALECTS)
def test_a_preempted_request_comes_back_with_its_processors_state(cls: type) -> None:
    check_preemption(cls)


@pytest.mark.parametrize("which", range(4), ids=TORCH)
def test_a_preempted_request_comes_back_to_a_torch_processor(torch_classes: list[type], which: int) -> None:
    check_preemption(torch_classes[which])


@pytest.mark.parametrize(("cls", "budget"), [*zip(DIALECTS, cycle([1, 3]), strict=False)])
def test_a_request_in_the_middle_of_its_prompt_has_no_row_and_misses_no_token(cls: type, budget: int) -> None:
    engine, name = engine_with(cls, max_num_batched_tokens=budget)
    assert run_to_end(engine, requests_for(name)) == calm(cls)


@pytest.mark.parametrize("cls", DIALECTS)
def test_a_request_whose_prompt_is_known_sees_all_of_it(cls: type) -> None:
    engine, name = engine_with(cls)
    cold = run_to_end(engine, requests_for(name))
    hits = engine.blocks.num_hit_tokens
    assert run_to_end(engine, requests_for(name)) == cold
    assert engine.blocks.num_hit_tokens > hits
