"""The slot arrays of the harness are those of the worker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.sequences import sequence

from fastdeploy_lp.logits_processor import Selection
from fastdeploy_lp.logits_processor.read_only_list import ReadOnlyList
from fastdeploy_lp.logits_processor.testing.slots import Occupant, Slots
from fastdeploy_lp.worker.share_inputs import ShareInputs

SLOTS, LENGTH = 4, 10


def require_same(slots: Slots, worker: ShareInputs) -> None:
    assert set(slots) == set(worker)
    assert len(slots) == len(worker)
    for name in worker:
        ours, theirs = slots[name], worker[name]
        if isinstance(theirs, list):
            assert [type(each) for each in ours] == [type(each) for each in theirs], name
            assert ours == theirs, name
            continue
        assert type(ours) is type(theirs), name
        assert ours.dtype == theirs.dtype, name
        np.testing.assert_array_equal(np.array(ours), np.array(theirs), err_msg=name)


@pytest.mark.parametrize("output", [[], [4, 5]])
def test_they_hold_what_the_workers_hold(output: list[int]) -> None:
    slots, worker = Slots(SLOTS, LENGTH), ShareInputs(SLOTS, LENGTH)
    require_same(slots, worker)
    sampling: dict[str, Any] = {"temperature": 0.5, "top_p": 0.25, "top_k": -1, "min_p": 0.125, "seed": 2**63}
    selection = Selection(named={"one": {"a": 1}, "two": {"b": 2}})
    made = sequence([7, 8, 9], request_id="r", slot=2, output=output, selection=selection, **sampling)
    slots.assign(2, Occupant("r", ReadOnlyList([7, 8, 9]), list(output), selection, made.params))
    worker.assign(made)
    require_same(slots, worker)
    slots.set_active([2])
    worker.set_active(np.array([2]))
    for token in range(20, 20 + LENGTH - 3 - len(output) + 1):
        slots.append_token(2, token)
        worker.append_tokens(np.array([2]), np.array([token]))
        # The worker's own loop does this.
        made.output_token_ids.append(token)
        require_same(slots, worker)
    slots.clear(2)
    worker.clear(2)
    slots.set_active([])
    worker.set_active(np.array([], np.int64))
    require_same(slots, worker)


@pytest.mark.parametrize("name", ["nothing", "stop_flags_cpu", "prompt_lens_cpu"])
def test_there_are_no_others(name: str) -> None:
    with pytest.raises(KeyError):
        Slots(SLOTS, LENGTH)[name]
