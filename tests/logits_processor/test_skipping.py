"""Processors that change no row's most likely token are left out where nothing else of their logits counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from paddle import Tensor
from support.sequences import Ran, request, run_to_end
from support.tiny import tiny_fd_config

from fastdeploy_lp import LogitsProcessor
from fastdeploy_lp.logits_processor import LogitsProcessorChain, Selection, load_processors
from fastdeploy_lp.worker.engine_core import EngineCore
from fastdeploy_lp.worker.logits_mask import LogitsMask

LOGIT_BIAS = "LogitBiasLogitsProcessor"
HALVED = Selection(named={"Halves": {}})


class Halves(LogitsProcessor):
    """Makes rows flatter, which changes no row's most likely token."""

    def __init__(self, fd_config: Any) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None: ...

    def apply(self, logits: Tensor) -> Tensor:
        return logits.scale_(0.5)

    def is_argmax_invariant(self) -> bool:
        return True


def engine_with(*specs: str) -> EngineCore:
    config = tiny_fd_config(max_num_seqs=4, logprobs_mode="processed_logprobs")
    declared = load_processors(specs, {"m:Halves": Halves})
    return EngineCore(config, LogitsProcessorChain(declared, config))


def test_it_is_left_out_at_the_chains_end_while_every_row_is_greedy() -> None:
    engine = engine_with(LOGIT_BIAS, "m:Halves")
    stats = engine.runner.chain.stats["Halves"]
    plain = run_to_end(engine_with(), [request(f"r{i}", [i + 1], max_tokens=3) for i in range(2)])
    greedy = [request(f"r{i}", [i + 1], max_tokens=3, selection=HALVED) for i in range(2)]
    alone = run_to_end(engine, greedy)
    assert {name: ran.token_ids for name, ran in alone.items()} == {name: ran.token_ids for name, ran in plain.items()}
    assert (stats.skipped_greedy, stats.rows) == (3, 0)
    run_to_end(engine, [*greedy, request("random", [5], temperature=1.0, seed=1, max_tokens=2)])
    # Two steps with a random row, and one more without.
    assert (stats.skipped_greedy, stats.rows) == (4, 4)


class Counts(LogitsMask):
    """A mask that rules nothing out, and counts how often it is asked."""

    applied = 0

    def apply(self, logits: Tensor, slots: Any) -> Tensor:
        self.applied += 1
        return logits


def test_what_was_left_out_did_not_run_so_nothing_is_masked_again() -> None:
    engine = engine_with(LOGIT_BIAS, "m:Halves")
    mask = engine.runner.mask = Counts()
    run_to_end(engine, [request("greedy", [1], max_tokens=3, selection=HALVED)])
    chain = engine.runner.chain
    assert (mask.applied, chain.ran(), chain.needs_guard()) == (3, False, False)
    mask.applied = 0
    run_to_end(engine, [request("random", [1], temperature=1.0, seed=1, max_tokens=3, selection=HALVED)])
    assert (mask.applied, chain.ran(), chain.needs_guard()) == (6, True, True)


# Whose logits are halved gets another token from what comes behind.
BIASED = Selection(named={"Halves": {}, LOGIT_BIAS: {"logit_bias": {9: 2.5}}})
REPEATING = Selection(named={"Halves": {}, LOGIT_BIAS: {"logit_bias": {9: 6.0}}})
BEHIND: dict[str, tuple[list[str], dict[str, Any]]] = {
    "processor": (["m:Halves", LOGIT_BIAS], {"selection": BIASED}),
    "penalty": ([LOGIT_BIAS, "m:Halves"], {"selection": REPEATING, "presence_penalty": 2.0}),
    "logprobs": ([LOGIT_BIAS, "m:Halves"], {"selection": HALVED, "logprobs": 4}),
}


@pytest.mark.parametrize("behind", BEHIND)
def test_an_answer_is_the_same_beside_a_row_that_is_drawn(behind: str) -> None:
    specs, params = BEHIND[behind]
    random = request("random", [5], temperature=1.0, seed=1, max_tokens=6)

    def answer(*neighbours: Any) -> Ran:
        made = request("greedy", [7, 8], max_tokens=6, **params)
        return run_to_end(engine_with(*specs), [made, *neighbours])["greedy"]

    alone, beside = answer(), answer(random)
    assert alone.token_ids == beside.token_ids
    assert alone.logprobs == beside.logprobs
