"""Requests that join, leave and are aborted at random: every row of every step belongs to the right request."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from paddle import Tensor
from support.sequences import Ran, chain_of, request
from support.tiny import tiny_fd_config

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessor
from fastdeploy_lp.logits_processor.builtin.logit_bias import LogitBiasLogitsProcessor
from fastdeploy_lp.logits_processor.share_inputs import ShareInputs
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.worker.engine_core import EngineCore

SLOTS = 6
MAX_MODEL_LEN = 40
VOCAB_SIZE = 512
NUM_REQUESTS = 80


@dataclass
class Seen:
    """Copies of what a processor saw in one step; row r of `logits` is slot `slots[r]`."""

    slots: list[int]
    req_ids: list[str]
    args: list[dict[str, Any]]
    token_ids: np.ndarray
    num_tokens: np.ndarray
    logits: np.ndarray


class Recorder(LogitsProcessor):
    """Copies what it sees and changes nothing."""

    made: ClassVar[list[Recorder]] = []

    def __init__(self, fd_config: FDConfig) -> None:
        self.seen: list[Seen] = []
        Recorder.made.append(self)
        self.updates = 0

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        self.updates += 1
        stop_flags = share_inputs["stop_flags"]
        self._state = {
            "slots": [slot for slot in range(SLOTS) if not stop_flags[slot, 0]],
            "req_ids": list(share_inputs["req_ids"]),
            "args": [dict(args) for args in share_inputs["logits_processors_args"]],
            "token_ids": share_inputs["token_ids_all_cpu"].copy(),
            "num_tokens": (share_inputs["prompt_lens"] + share_inputs["step_idx"])[:, 0],
        }

    def apply(self, logits: Tensor) -> Tensor:
        self.seen.append(Seen(**self._state, logits=np.array(logits.numpy())))
        assert len(self.seen) == self.updates
        return logits


class Second(Recorder): ...


@dataclass
class Churn:
    """One finished run."""

    engine: EngineCore
    before: Recorder
    after: Recorder
    requests: dict[str, AddRequest]
    aborted: set[str]
    ran: dict[str, Ran]
    step_rows: list[list[tuple[str, int]]]

    def bias(self, request_id: str) -> dict[int, float]:
        args = self.requests[request_id].selection.flat
        return args.get("logit_bias") or {}


def random_request(rng: random.Random, index: int) -> AddRequest:
    prompt = [rng.randrange(VOCAB_SIZE) for _ in range(rng.choice([1, 2, 3, 5, 8, 13, 21]))]
    args: dict[str, Any] | None = None
    if rng.random() < 0.6:
        tokens = rng.sample(range(VOCAB_SIZE), rng.randrange(1, 6))
        values = [rng.choice([-np.inf, rng.uniform(-20, 20), 0.1, 100.0]) for _ in tokens]
        args = {"logit_bias": dict(zip(tokens, values, strict=True))}
    elif rng.random() < 0.3:
        args = {"logit_bias": None}
    # Drawing from one candidate takes the sampler's other path and gives the most likely token as well.
    drawn = {"temperature": 0.7, "top_k": 1, "seed": index} if rng.random() < 0.3 else {}
    max_tokens = rng.randrange(1, MAX_MODEL_LEN - len(prompt) + 1) if rng.random() < 0.3 else rng.randrange(1, 8)
    return request(f"r{index}", prompt, max_tokens=max_tokens, logits_processors_args=args, **drawn)


ROOMY: dict[str, Any] = {"max_num_batched_tokens": 512, "enable_prefix_caching": False}
# Prompts in pieces, shared beginnings, and preemption.
TIGHT: dict[str, Any] = {"max_num_batched_tokens": 9, "num_blocks": 1 + 14, "block_size": 3}


@pytest.fixture(scope="module", params=[(0, ROOMY), (1, TIGHT)], ids=["roomy", "tight"])
def churn(request: pytest.FixtureRequest) -> Churn:
    seed, room = request.param
    rng = random.Random(seed)
    config = tiny_fd_config(max_num_seqs=SLOTS, max_model_len=MAX_MODEL_LEN, **room)
    engine = EngineCore(config, chain_of([Recorder, LogitBiasLogitsProcessor, Second], config))
    before, after = Recorder.made[-2:]
    upcoming = [random_request(rng, index) for index in range(NUM_REQUESTS)]
    requests = {made.request_id: made for made in upcoming}
    aborted: set[str] = set()
    ran: dict[str, Ran] = {}
    step_rows: list[list[tuple[str, int]]] = []
    alive: list[str] = []
    while upcoming or engine.has_work:
        for _ in range(rng.choice([0, 0, 1, 1, 2, 4])):
            if upcoming:
                added = upcoming.pop(0)
                alive.append(added.request_id)
                engine.add(added)
        if alive and rng.random() < 0.12:
            gone = rng.sample(alive, min(len(alive), rng.choice([1, 1, 3])))
            aborted |= set(gone)
            alive = [request_id for request_id in alive if request_id not in aborted]
            engine.abort([*gone, "a-request-that-is-not-there"])
        if engine.has_work:
            steps = engine.step().steps
            if steps:
                step_rows.append([(step.request_id, step.token_ids[0]) for step in steps])
            for step in steps:
                ran.setdefault(step.request_id, Ran()).take(step)
            alive = [i for i in alive if i not in ran or ran[i].finish_reason is None]
    return Churn(engine, before, after, requests, aborted, ran, step_rows)


def test_one_of_the_runs_preempts(request: pytest.FixtureRequest, churn: Churn) -> None:
    assert (churn.engine.scheduler.num_preemptions > 3) == ("tight" in request.node.name)


def test_the_run_has_what_it_is_meant_to_test(churn: Churn) -> None:
    assert len(churn.requests) == NUM_REQUESTS
    assert any(request_id in churn.ran for request_id in churn.aborted)
    assert any(churn.bias(request_id) for request_id in churn.ran)
    rows = [len(seen.slots) for seen in churn.before.seen]
    tight = churn.engine.scheduler.num_preemptions > 0
    assert max(rows) == SLOTS or (tight and max(rows) > SLOTS / 2)
    if tight:
        # Requests in the middle of their prompts hold slots without rows.
        assert any(sum(map(bool, seen.req_ids)) > len(seen.slots) for seen in churn.before.seen)
    # Stopped slots below active ones, where row and slot number differ.
    assert any(seen.slots != list(range(len(seen.slots))) for seen in churn.before.seen)


def test_every_step_is_seen_once_with_one_row_for_each_active_slot(churn: Churn) -> None:
    assert len(churn.before.seen) == len(churn.after.seen) == len(churn.step_rows)
    for seen, rows in zip(churn.before.seen, churn.step_rows, strict=True):
        assert seen.logits.shape == (len(seen.slots), VOCAB_SIZE)
        assert [seen.req_ids[slot] for slot in seen.slots] == [request_id for request_id, _ in rows]


def test_every_row_gets_the_bias_of_the_request_in_it_and_nothing_else(churn: Churn) -> None:
    for before, after in zip(churn.before.seen, churn.after.seen, strict=True):
        expected = before.logits.copy()
        for row, slot in enumerate(before.slots):
            for token, value in churn.bias(before.req_ids[slot]).items():
                expected[row, token] += np.float32(value)
        np.testing.assert_array_equal(after.logits.view(np.uint32), expected.view(np.uint32))


def test_a_slot_holds_the_arguments_of_its_request_and_none_when_it_is_empty(churn: Churn) -> None:
    for seen in churn.before.seen:
        for slot in range(SLOTS):
            owner = seen.req_ids[slot]
            assert owner or slot not in seen.slots
            expected = churn.requests[owner].selection.flat if owner else {}
            assert seen.args[slot] == expected


def test_reused_slots_show_a_request_without_arguments_untouched(churn: Churn) -> None:
    biased_before: set[int] = set()
    checked = 0
    for before, after in zip(churn.before.seen, churn.after.seen, strict=True):
        for row, slot in enumerate(before.slots):
            if churn.bias(before.req_ids[slot]):
                biased_before.add(slot)
            elif slot in biased_before:
                np.testing.assert_array_equal(after.logits[row], before.logits[row])
                checked += 1
    assert checked > NUM_REQUESTS / 4


def test_every_token_is_the_most_likely_one_of_its_row(churn: Churn) -> None:
    for after, rows in zip(churn.after.seen, churn.step_rows, strict=True):
        assert after.logits.argmax(axis=1).tolist() == [token for _, token in rows]


def test_processors_see_every_output_token_exactly_once(churn: Churn) -> None:
    outputs: dict[str, list[int]] = {}
    for seen, rows in zip(churn.before.seen, churn.step_rows, strict=True):
        for slot, (request_id, token) in zip(seen.slots, rows, strict=True):
            so_far = churn.requests[request_id].prompt_token_ids + outputs.setdefault(request_id, [])
            assert seen.num_tokens[slot] == len(so_far)
            assert seen.token_ids[slot].tolist() == so_far + [-1] * (MAX_MODEL_LEN - len(so_far))
            outputs[request_id].append(token)


def test_everybody_who_was_not_aborted_gets_all_tokens(churn: Churn) -> None:
    for request_id, made in churn.requests.items():
        if request_id not in churn.aborted:
            assert churn.ran[request_id].finish_reason == "length"
            assert len(churn.ran[request_id].token_ids) == made.params.max_tokens


def test_an_aborted_request_yields_nothing_more(churn: Churn) -> None:
    unfinished = {i for i, ran in churn.ran.items() if ran.finish_reason is None}
    assert unfinished <= churn.aborted


def test_in_the_end_everything_is_free_and_empty(churn: Churn) -> None:
    engine = churn.engine
    assert (engine.scheduler.num_running, engine.scheduler.num_waiting) == (0, 0)
    assert engine.blocks.num_free == engine.blocks.num_total
    empty, left = ShareInputs(SLOTS, MAX_MODEL_LEN), engine.runner.share_inputs
    assert set(left) == set(empty)
    for name in empty:
        if isinstance(empty[name], list):
            assert left[name] == empty[name], name
        else:
            np.testing.assert_array_equal(np.array(left[name]), np.array(empty[name]), err_msg=name)
