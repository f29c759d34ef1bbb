"""How a worker starts: the calls, their order, and how many blocks the cache gets."""

from __future__ import annotations

import dataclasses

import pytest
from support.sequences import request, run_to_end
from support.tiny import tiny_fd_config

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessorChain
from fastdeploy_lp.worker.engine_core import EngineCore
from fastdeploy_lp.worker.kv_cache_spec import KVCacheSpec
from fastdeploy_lp.worker.model_runner import ModelRunner
from fastdeploy_lp.worker.worker import Worker
from fastdeploy_lp.worker.worker_base import WorkerBase

PROMPT = [5, 3, 8, 2]
CALLS = [
    "init_device",
    "load_model",
    "get_kv_cache_spec",
    "determine_available_memory",
    "initialize_cache",
    "compile_or_warm_up_model",
]


class Recorded(Worker):
    """Notes which calls reach it from outside."""

    calls: list[str]
    inside: bool

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.calls, self.inside = [], False

    def __getattribute__(self, name: str) -> object:
        if name in CALLS and not self.inside:
            self.calls.append(name)
            method = super().__getattribute__(name)

            def call(*args: object) -> object:
                self.inside = True
                try:
                    return method(*args)
                finally:
                    self.inside = False

            return call
        return super().__getattribute__(name)


class Small(Worker):
    """Has room for `blocks` blocks."""

    blocks = 20

    def determine_available_memory(self) -> int:
        return self.blocks * self.get_kv_cache_spec().bytes_per_block


class Tiny(Small):
    blocks = 5


class Huge(Small):
    blocks = 10**9


class CountingRunner(ModelRunner):
    """Counts its steps."""

    steps = 0

    def execute(self, chunks: list) -> object:
        self.steps += 1
        return super().execute(chunks)


class NoWorker:
    pass


def named(**classes: str) -> FDConfig:
    config = tiny_fd_config(max_num_seqs=2, max_model_len=64, block_size=4)
    return dataclasses.replace(config, device_config=dataclasses.replace(config.device_config, **classes))


def core(**classes: str) -> EngineCore:
    config = named(**classes)
    return EngineCore(config, LogitsProcessorChain([], config))


@pytest.fixture(scope="module")
def expected() -> list[int]:
    return answer(core())


def answer(engine: EngineCore) -> list[int]:
    tokens: list[int] = run_to_end(engine, [request("r", PROMPT, max_tokens=8)])["r"].token_ids
    return tokens


def here(name: str) -> str:
    return f"{__name__}:{name}"


def test_the_calls_come_in_their_order_each_once(expected: list[int]) -> None:
    engine = core(worker_class=here("Recorded"))
    assert engine.worker.calls == CALLS
    assert answer(engine) == expected
    assert engine.worker.calls == CALLS


def test_without_a_name_the_worker_is_our_own() -> None:
    engine = core()
    assert type(engine.worker) is Worker
    assert type(engine.worker.model_runner) is ModelRunner
    assert isinstance(engine.worker, WorkerBase)


def test_the_chain_is_built_when_the_device_is_set() -> None:
    config, built = named(worker_class=here("Recorded")), []

    def build_chain() -> LogitsProcessorChain:
        built.append(None)
        return LogitsProcessorChain([], config)

    engine = EngineCore(config, build_chain)
    assert len(built) == 1
    assert engine.worker.calls[0] == "init_device"


def test_a_model_runner_can_be_replaced(expected: list[int]) -> None:
    engine = core(model_runner_class=here("CountingRunner"))
    assert answer(engine) == expected
    assert engine.runner.steps == len(expected)


@pytest.mark.parametrize(("name", "blocks"), [("Small", 20), ("Huge", 1 + 2 * 16)])
def test_the_cache_has_what_was_settled_or_what_the_worker_can_hold(
    expected: list[int], name: str, blocks: int
) -> None:
    engine = core(worker_class=here(name))
    assert engine.blocks.num_total == blocks - 1
    assert answer(engine) == expected


def test_a_worker_that_cannot_hold_one_sequence_says_so() -> None:
    with pytest.raises(ValueError, match="num_blocks: 5 blocks of 4 tokens, one of them unused, do not hold one"):
        core(worker_class=here("Tiny"))


def test_what_a_block_takes() -> None:
    spec = KVCacheSpec.of(named())
    hf_config = named().model_config.hf_config
    heads, layers = hf_config["num_key_value_heads"], hf_config["num_hidden_layers"]
    head_dim = hf_config.get("head_dim") or hf_config["hidden_size"] // hf_config["num_attention_heads"]
    assert spec.bytes_per_block == 2 * layers * heads * head_dim * 4 * 4


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ({"worker_class": here("NoWorker")}, "worker of platform cpu: .* must be a subclass of .*:WorkerBase"),
        ({"worker_class": here("Missing")}, "worker of platform cpu: .* has no Missing"),
        ({"worker_class": "nonsense"}, "worker of platform cpu: 'nonsense' is no name of a class; write module:Class"),
        ({"model_runner_class": here("NoWorker")}, "model runner of platform cpu: .* must be a subclass of"),
        ({"model_runner_class": "no_such_module:X"}, "model runner of platform cpu: .* no module no_such_module"),
    ],
)
def test_a_name_that_leads_to_no_such_class_is_told(classes: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        core(**classes)
