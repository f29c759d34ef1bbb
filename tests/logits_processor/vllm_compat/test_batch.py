"""The stand-ins for vLLM's bookkeeping and builtin processors, against tables and plain numpy."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from support.batch_slots import Slots

from fastdeploy_lp.logits_processor.dialects.batch_tracker import BatchTracker
from fastdeploy_lp.logits_processor.vllm_compat import build
from fastdeploy_lp.logits_processor.vllm_compat.batch import BatchUpdateBuilder, LogitsProcessors
from fastdeploy_lp.logits_processor.vllm_compat.builtin import (
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
    process_dict_updates,
)
from fastdeploy_lp.logits_processor.vllm_config import VllmConfig
from fastdeploy_lp.logits_processor.vllm_v1 import BatchUpdate, MoveDirectionality
from fastdeploy_lp.request.sampling_params import SamplingParams

SWAP, ONE_WAY = MoveDirectionality.SWAP, MoveDirectionality.UNIDIRECTIONAL
VOCAB, EOS = 32, (2, 3)


def none(*_: Any) -> None:
    """No state."""


@pytest.mark.parametrize(
    ("before", "update", "after", "changed"),
    [
        ({0: "a"}, None, {0: "a"}, False),
        ({0: "a", 1: "b"}, BatchUpdate(1, [1], [], []), {0: "a"}, True),
        ({0: "a"}, BatchUpdate(1, [1], [], []), {0: "a"}, False),
        ({0: "a", 1: "b"}, BatchUpdate(2, [], [], [(1, 0, SWAP)]), {0: "b", 1: "a"}, True),
        ({1: "b"}, BatchUpdate(2, [], [], [(1, 0, SWAP)]), {0: "b"}, True),
        ({0: "a"}, BatchUpdate(2, [], [], [(1, 0, SWAP)]), {1: "a"}, True),
        ({}, BatchUpdate(2, [], [], [(1, 0, SWAP)]), {}, False),
        ({2: "c"}, BatchUpdate(2, [0], [], [(2, 0, ONE_WAY)]), {0: "c"}, True),
        ({0: "a"}, BatchUpdate(1, [], [(0, "p", [], [])], []), {}, True),
        # A state that counts as false is a state.
        ({0: 0, 1: "b"}, BatchUpdate(1, [0], [], [(1, 0, ONE_WAY)]), {0: "b"}, True),
    ],
)
def test_states_follow_their_rows(
    before: dict[int, Any], update: BatchUpdate | None, after: dict[int, Any], changed: bool
) -> None:
    states = dict(before)
    assert process_dict_updates(states, update, none) is changed
    assert states == after


def test_a_builder_makes_an_update_of_what_changed() -> None:
    builder = BatchUpdateBuilder()
    assert builder.get_and_reset(3) is None
    for row in (4, 1, 3):
        builder.removed_append(row)
    assert (builder.peek_removed(), builder.pop_removed(), builder.removed) == (1, 1, [4, 3])
    with pytest.raises(RuntimeError, match="read already"):
        builder.removed_append(0)
    builder.added.append((1, SamplingParams(), [], []))
    builder.moved.append((2, 0, SWAP))
    update = builder.get_and_reset(3)
    assert update is not None
    assert (update.batch_size, list(update.removed), len(update.added), list(update.moved)) == (
        *(3, [4, 3]),
        *(1, [(2, 0, SWAP)]),
    )
    assert not builder.has_removed()
    assert builder.pop_removed() is None
    builder.removed_append(2)
    assert list(update.removed) == [4, 3]
    assert builder.reset()
    assert not builder.reset()


def test_building_gives_the_builtins_and_the_custom_ones_by_invariance() -> None:
    class Mine(MinPLogitsProcessor):
        """A processor of a package."""

    built = build.build_logitsprocs(VllmConfig(), torch.device("cpu"), False, False, [Mine])
    assert [type(each) for each in built.argmax_invariant] == [MinPLogitsProcessor, Mine]
    assert [type(each) for each in built.non_argmax_invariant] == [MinTokensLogitsProcessor, LogitBiasLogitsProcessor]
    assert len(list(built.all)) == 4
    assert list(LogitsProcessors().all) == []
    speculative = VllmConfig(speculative_config={"model": "ngram"})
    assert len(list(build.build_logitsprocs(speculative, "cpu", False, False).all)) == 1
    assert not list(build.build_logitsprocs(VllmConfig(), "cpu", False, True).all)
    for config, pooling in ((VllmConfig(), True), (speculative, False)):
        with pytest.raises(ValueError, match="takes no custom"):
            build.build_logitsprocs(config, "cpu", False, pooling, [Mine])
    with pytest.raises(ValueError, match="is no subclass"):
        build.build_logitsprocs(VllmConfig(), "cpu", False, False, ["pathlib:Path"])


def expected(row: np.ndarray, params: SamplingParams, bias: dict[int, float], output: list[int]) -> np.ndarray:
    row = row.copy()
    for token, value in bias.items():
        row[token] += np.float32(value)
    if params.min_p:
        weights = torch.softmax(torch.from_numpy(row), -1)
        row[(weights < weights.max() * params.min_p).numpy()] = -np.inf
    if len(output) < params.min_tokens:
        row[[*EOS, *(params.stop_token_ids or ())]] = -np.inf
    return row


@pytest.mark.parametrize("seed", range(6))
def test_the_builtins_edit_the_rows_of_their_requests_in_random_churn(seed: int) -> None:
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    slots, tracker = Slots(6), BatchTracker(eos_token_ids=EOS)
    classes = (LogitBiasLogitsProcessor, MinPLogitsProcessor, MinTokensLogitsProcessor)
    processors = [cls(VllmConfig(), torch.device("cpu"), False) for cls in classes]
    biases: dict[str, dict[int, float]] = {}
    rows = 0
    for step in range(120):
        for slot in range(6):
            if slots.arrays["req_ids"][slot]:
                if rng.random() < 0.2:
                    slots.leave(slot)
            elif rng.random() < 0.3:
                name = f"r{step}-{slot}"
                biases[name] = {rng.randrange(VOCAB): rng.uniform(-9, 9)} if rng.random() < 0.5 else {}
                slots.enter(slot, name, {"logit_bias": biases[name]} if biases[name] else None)
                slots.arrays["sampling_params"][slot] = SamplingParams(
                    min_p=rng.choice([0.0, 0.3]), min_tokens=rng.choice([0, 3]), stop_token_ids=rng.choice([None, [9]])
                )
        update = tracker.update(slots.arrays)
        active = slots.active
        before = numbers.standard_normal((len(active), VOCAB)).astype(np.float32)
        logits = torch.from_numpy(before.copy())
        for processor in processors:
            processor.update_state(update)
            logits = processor.apply(logits)
        for row, slot in enumerate(active):
            arrays = slots.arrays
            output = arrays["output_token_ids"][slot]
            wanted = expected(before[row], arrays["sampling_params"][slot], biases[arrays["req_ids"][slot]], output)
            np.testing.assert_array_equal(logits[row].numpy(), wanted)
            output.append(int(logits[row].argmax()))
            rows += 1
    assert rows > 200
