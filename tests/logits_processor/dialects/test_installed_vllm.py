"""Processors of an installed vLLM: its own classes in updates, faults by row, its errors of requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support import installed_vllm as vllm
from support.batch_slots import Slots
from support.sequences import request, tiny_engine

from fastdeploy_lp.logits_processor import RequestArgsError, RequestArgsValidator, load_processors
from fastdeploy_lp.logits_processor.dialects.batch_tracker import BatchInterface, BatchTracker
from fastdeploy_lp.request.sampling_params import SamplingParams


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    with vllm.installed_vllm():
        yield


def test_updates_are_made_of_the_modules_own_classes() -> None:
    slots, tracker = Slots(3), BatchTracker(BatchInterface.of(vllm))
    slots.enter(1, "a")
    slots.enter(2, "b")
    tracker.update(slots.arrays)
    slots.enter(0, "c")
    slots.leave(1)
    swapped = tracker.update(slots.arrays)
    slots.leave(0)
    condensed = tracker.update(slots.arrays)
    assert type(swapped) is type(condensed) is vllm.BatchUpdate
    directions = [direction for update in (swapped, condensed) for *_, direction in update.moved]
    assert all(isinstance(direction, vllm.MoveDirectionality) for direction in directions)
    assert vllm.MoveDirectionality.UNIDIRECTIONAL in directions


def test_a_callable_of_vllms_own_adapter_that_raises_ends_its_own_request_alone() -> None:
    def outcome(*added: Any) -> tuple[dict[str, list[int]], dict[str, str]]:
        engine = tiny_engine([vllm.Adapted], max_num_seqs=4)
        for each in added:
            engine.add(each)
        tokens: dict[str, list[int]] = {}
        errors: dict[str, str] = {}
        while engine.has_work:
            for step in engine.step().steps:
                tokens.setdefault(step.request_id, []).extend(step.token_ids)
                if step.error is not None:
                    errors[step.request_id] = str(step.error)
        return tokens, errors

    def biased(name: str, token: int) -> Any:
        return request(name, [5, 6], max_tokens=4, logits_processors_args={"hash_bias": [token, 9.0]})

    alone, none = outcome(biased("good", 7))
    together, errors = outcome(biased("good", 7), biased("bad", -1), request("plain", [5, 6], max_tokens=4))
    assert not none
    assert together["good"] == alone["good"]
    assert len(together["plain"]) == 4
    assert list(errors) == ["bad"]
    assert "Adapted" in errors["bad"]


def test_vllms_error_of_a_request_is_an_error_of_the_request() -> None:
    declared = load_processors(["x:Y"], {"x:Y": vllm.Adapted})
    with pytest.raises(RequestArgsError, match="Adapted: not this one") as raised:
        RequestArgsValidator(declared, 512).validate(SamplingParams(extra_args={"refused": True}))
    # An error with a cause is logged as a fault of the processor's own check.
    assert raised.value.__cause__ is None


def test_parameters_have_what_vllms_processors_read() -> None:
    slots, tracker = Slots(4), BatchTracker(BatchInterface.of(vllm), (2, 9))
    slots.enter(0, "plain")
    slots.enter(1, "stops", {"logit_bias": {"3": 1}})
    slots.arrays["sampling_params"][1] = SamplingParams(stop_token_ids=[7], min_tokens=3, min_p=0.5)
    slots.enter(2, "endless")
    slots.arrays["sampling_params"][2] = SamplingParams(ignore_eos=True)
    slots.enter(3, "other", {"logit_bias": [1, 2]})
    update = tracker.update(slots.arrays)
    plain, stops, endless, other = [params for _, params, _, _ in update.added]
    assert all(isinstance(params, SamplingParams) for params in (plain, stops, endless))
    assert (plain.eos_token_id, plain.all_stop_token_ids, plain.logit_bias) == (2, {2, 9}, None)
    assert (stops.all_stop_token_ids, stops.min_tokens, stops.min_p) == ({2, 7, 9}, 3, 0.5)
    assert (stops.logit_bias, stops.extra_args) == ({3: 1.0}, {"logit_bias": {"3": 1}})
    assert (endless.eos_token_id, endless.all_stop_token_ids) == (None, {2, 9})
    assert other.logit_bias is None
    copy = stops.clone()
    copy.stop_token_ids.append(1)
    assert (stops.stop_token_ids, copy.all_stop_token_ids) == ([7], {1, 2, 7, 9})
    assert np.isclose(copy.min_p, 0.5)
