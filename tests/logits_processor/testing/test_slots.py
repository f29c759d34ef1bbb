"""Slot arrays that are filled by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fastdeploy_lp.logits_processor import Selection
from fastdeploy_lp.logits_processor.processor_args import ReadOnlyList
from fastdeploy_lp.logits_processor.testing.harness import Occupant, Slots

SLOTS, LENGTH = 4, 6


def test_a_token_reaches_the_arrays_and_the_live_list() -> None:
    slots = Slots(SLOTS, LENGTH)
    occupant = Occupant(2, "r", ReadOnlyList([7, 8, 9]), ReadOnlyList([4]), Selection())
    slots.assign(occupant)
    for token in (20, 21, 22):
        slots.append_token(2, token)
    assert slots["output_token_ids"][2] is occupant.output
    assert occupant.output == [4, 20, 21, 22]
    # The last token of a full context has no place in the array.
    assert slots["token_ids_all_cpu"][2].tolist() == [7, 8, 9, 4, 20, 21]
    assert np.array(slots["next_tokens"])[2, 0] == 22
    assert slots["step_idx"][2, 0] == 4


@pytest.mark.parametrize("name", ["nothing", "stop_flags_cpu", "prompt_lens_cpu"])
def test_there_are_no_others(name: str) -> None:
    with pytest.raises(KeyError):
        Slots(SLOTS, LENGTH)[name]
