"""Random churn with the same processor in every dialect: every row of every step is what plain numpy gives."""

from __future__ import annotations

import gc
import random
import sys
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import support.hash_bias as hash_bias
from support.hash_bias import PLUGIN, Mrv2, Native, RequestThree, RequestTwo, Vllm, reference
from support.hash_bias_torch import HuggingFace, torch_slot_keyed_classes, torch_vllm_classes
from support.installed_vllm import Adapted, RowState, installed_vllm
from support.recording import After, Before, forget
from support.sequences import Ran, request
from support.server import wait_until
from support.stand_ins import vllm_stand_ins
from support.tiny import tiny_fd_config

from fastdeploy_lp.config.option_values import spec_of
from fastdeploy_lp.logits_processor import LogitsProcessorChain, Selection, load_processors
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.worker.engine_core import EngineCore

SLOTS = 5
NUM_REQUESTS = 30
GONE_SECONDS = 60.0
BY_NAME_ONLY = ("Plugin", "HuggingFace")
TORCH = ["V1 in place", "V1 copies", "slot-keyed in place", "slot-keyed copies"]


@pytest.fixture
def torch_classes() -> Iterator[list[type]]:
    with vllm_stand_ins():
        yield [*torch_vllm_classes(), *torch_slot_keyed_classes()]


def chain_of(classes: Sequence[type]) -> tuple[LogitsProcessorChain, list[str], Any]:
    """The chain between two recorders; the names of what stands between them."""
    config = tiny_fd_config(max_num_seqs=SLOTS, max_model_len=40)
    objects: dict[str, object] = {spec_of(cls): cls for cls in (Before, *classes, After)}
    specs = [spec_of(cls) if cls is not hash_bias.Plugin else "support.hash_bias:PLUGIN" for cls in (Before, *classes)]
    declared = load_processors([*specs, spec_of(After)], objects)
    return LogitsProcessorChain(declared, config), [each.name for each in declared[1:-1]], config


def random_selection(rng: random.Random, names: Sequence[str]) -> Selection:
    def args() -> dict[str, Any]:
        return {"hash_bias": [rng.randrange(512), rng.choice([1000.0, -7.5, 3.25])]}

    kind = rng.random()
    if kind < 0.25:
        return Selection()
    if kind < 0.5 and set(names) - set(BY_NAME_ONLY):
        return Selection(flat=args())
    chosen = {name: args() for name in names if len(names) == 1 or rng.random() < 0.5}
    return Selection(named={"Before": {}, **chosen, "After": {}})


def random_request(rng: random.Random, names: Sequence[str], index: int) -> AddRequest:
    prompt = [rng.randrange(512) for _ in range(rng.choice([1, 2, 3, 8]))]
    return request(f"r{index}", prompt, max_tokens=rng.randrange(1, 9), selection=random_selection(rng, names))


def expected_row(made: AddRequest, names: Sequence[str], before: np.ndarray, output: Sequence[int]) -> np.ndarray:
    row, selection = before.copy(), made.selection
    for name in names:
        if selection.named is None:
            args = {} if name in BY_NAME_ONLY else selection.flat
        else:
            args = selection.named.get(name, {})
        if args:
            reference(row, name, args["hash_bias"], made.prompt_token_ids, output)
    return row


def check_churn(classes: Sequence[type], seed: int) -> EngineCore:
    rng = random.Random(seed)
    chain, names, config = chain_of(classes)
    engine = EngineCore(config, chain)
    forget()
    upcoming = [random_request(rng, names, index) for index in range(NUM_REQUESTS)]
    requests = {made.request_id: made for made in upcoming}
    ran: dict[str, Ran] = {}
    while upcoming or engine.has_work:
        for _ in range(rng.choice([0, 1, 1, 3])):
            if upcoming:
                engine.add(upcoming.pop(0))
        if ran and rng.random() < 0.15:
            engine.abort([rng.choice(list(ran))])
        if engine.has_work:
            for step in engine.step().steps:
                ran.setdefault(step.request_id, Ran()).take(step)
    changed = 0
    assert len(After.rows) == sum(len(each.token_ids) for each in ran.values())
    for request_id, each in ran.items():
        for count, token in enumerate(each.token_ids):
            before, after = Before.rows[request_id, count], After.rows[request_id, count]
            expected = expected_row(requests[request_id], names, before, each.token_ids[:count])
            np.testing.assert_array_equal(after.view(np.uint32), expected.view(np.uint32))
            assert token == after.argmax()
            changed += bool((after != before).any())
    assert changed > NUM_REQUESTS / 2
    return engine


@pytest.mark.parametrize("cls", [Native, Vllm, Mrv2, RequestTwo, RequestThree, hash_bias.Plugin, HuggingFace])
def test_every_row_is_the_references(cls: type) -> None:
    check_churn([cls], seed=0)


@pytest.mark.parametrize("which", range(4), ids=TORCH)
def test_every_row_of_a_torch_processor_for_vllm_is_the_references(torch_classes: list[type], which: int) -> None:
    check_churn([torch_classes[which]], seed=2)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("cls", [RowState, Adapted])
def test_every_row_is_the_references_where_vllm_has_classes_of_its_own(cls: type, seed: int) -> None:
    with installed_vllm():
        check_churn([cls], seed)


@pytest.mark.parametrize("seed", [3, 4])
def test_all_dialects_stand_in_one_chain(torch_classes: list[type], seed: int) -> None:
    classes = [Vllm, Mrv2, HuggingFace, *torch_classes, Native, hash_bias.Plugin, RequestThree, RequestTwo]
    random.Random(seed).shuffle(classes)
    engine = check_churn(classes, seed)
    stats = engine.runner.chain.stats
    assert all(each.faults == 0 and each.slow_steps == 0 for each in stats.values())
    assert all(stats[cls.__name__].requests > 0 for cls in classes)


class Watched(hash_bias.Plugin):
    """Every live instance is in `alive`."""

    alive: ClassVar[weakref.WeakSet[Watched]] = weakref.WeakSet()

    def __init__(self, tokenizer: Any, parameters: Any) -> None:
        super().__init__(tokenizer, parameters)
        Watched.alive.add(self)


class WatchedHuggingFace(HuggingFace):
    alive: ClassVar[weakref.WeakSet[WatchedHuggingFace]] = weakref.WeakSet()

    def __init__(self, hash_bias: Any) -> None:
        super().__init__(hash_bias)
        WatchedHuggingFace.alive.add(self)


PLUGIN_WATCHED = {**PLUGIN, "logits_processor_class": Watched}


def wait_for(cls: Any, count: int) -> None:
    """The thread that made an instance holds it until it runs again."""

    def holds() -> bool:
        gc.collect()
        return len(cls.alive) == count

    wait_until(holds, GONE_SECONDS, lambda: f"{len(cls.alive)} are alive")


@pytest.mark.parametrize("others", [True, False], ids=["others go on with it", "nobody else uses it"])
@pytest.mark.parametrize("how", ["finished", "aborted"])
@pytest.mark.parametrize("cls", [Watched, WatchedHuggingFace])
def test_a_requests_instance_goes_with_it(cls: Any, how: str, others: bool) -> None:
    cls.alive.clear()
    config = tiny_fd_config()
    found = PLUGIN_WATCHED if cls is Watched else cls
    engine = EngineCore(config, LogitsProcessorChain(load_processors(["x:Y"], {"x:Y": found}), config))
    chosen = Selection(named={cls.__name__: {"hash_bias": [1, 2.0]}})
    engine.add(request("short", [1], max_tokens=2 if how == "finished" else 30, selection=chosen))
    engine.add(request("long", [1], max_tokens=20, selection=chosen if others else Selection()))
    assert engine.finish_preparing() == []
    engine.step()
    assert len(cls.alive) == 1 + others
    engine.step()
    if how == "aborted":
        engine.abort(["short"])
    engine.step()
    wait_for(cls, others)
    engine.abort(["long"])
    engine.add(request("plain", [1], max_tokens=1))
    engine.step()
    wait_for(cls, 0)


def test_importing_the_dialects_leaves_no_stand_ins_behind() -> None:
    with vllm_stand_ins():
        assert "vllm.v1.sample.logits_processor" in sys.modules
    assert not [name for name in sys.modules if name.partition(".")[0] == "vllm"]
