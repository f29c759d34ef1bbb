"""A processor that is run step by step without a model."""

from __future__ import annotations

import numpy as np
import pytest
import support.wrong as wrong

from fastdeploy_lp.logits_processor.testing import ProcessorHarness, StepError, standalone_fd_config

ARGS = {"token_id": 5, "boost": 2.0}
SMALL = standalone_fd_config(vocab_size=600, max_num_seqs=3)


def zeros(*request_ids: str) -> dict[str, np.ndarray]:
    return {each: np.zeros(600) for each in request_ids}


def test_only_requests_with_arguments_are_changed_and_the_most_likely_token_is_generated() -> None:
    harness = ProcessorHarness(wrong.Boosts, fd_config=SMALL)
    assert [harness.enter("a"), harness.enter("b", ARGS, prompt=[1, 2])] == [0, 1]
    rows = harness.step(zeros("a", "b"))
    assert not rows["a"].any()
    assert np.flatnonzero(rows["b"]).tolist() == [5]
    assert harness.requests[1].output == [5]
    assert harness.slots["token_ids_all_cpu"][1, :4].tolist() == [1, 2, 5, -1]
    harness.step(tokens={"b": 99})
    assert harness.requests[1].output == [5, 99]
    assert harness.slots["next_tokens"].numpy()[1, 0] == 99


def test_random_rows_depend_on_request_position_and_seed() -> None:
    harness = ProcessorHarness(wrong.Boosts, fd_config=SMALL)
    harness.enter("a", slot=2)
    np.testing.assert_array_equal(harness.step()["a"], harness.random_row("a", 0))
    np.testing.assert_array_equal(harness.step()["a"], harness.random_row("a", 1))
    other = ProcessorHarness(wrong.Boosts, fd_config=SMALL, seed=1)
    different = [harness.random_row("a", 1), harness.random_row("b", 0), other.random_row("a", 0)]
    assert not any((row == harness.random_row("a", 0)).all() for row in different)


def test_a_held_request_has_no_row_and_a_preempted_one_comes_back_with_its_tokens() -> None:
    harness = ProcessorHarness(wrong.BoostsMoreEachStep, fd_config=SMALL)
    slot = harness.enter("a", ARGS, held=True)
    assert harness.step() == {}
    harness.release(slot)
    assert harness.step(zeros("a"))["a"][5] == 2.0
    harness.hold(slot)
    assert harness.active == []
    left = harness.leave(slot)
    assert left.output == [5]
    assert harness.slots["logits_processors_args"][slot] == {}
    harness.enter("a", ARGS, output=left.output, slot=2)
    assert harness.step(zeros("a"))["a"][5] == 4.0


def test_apply_may_run_again_in_a_step() -> None:
    harness = ProcessorHarness(wrong.AdvancesInApply, fd_config=SMALL)
    harness.enter("a", ARGS)
    assert harness.step(zeros("a"), applications=2)["a"][5] == 3.0


def test_what_cannot_be_is_refused() -> None:
    harness = ProcessorHarness(wrong.Boosts, fd_config=SMALL)
    with pytest.raises(ValueError, match=r"logits_processors\.Boosts\.tokenid"):
        harness.enter("a", {"tokenid": 5})
    assert harness.requests == {}
    harness.enter("a", slot=1)
    with pytest.raises(ValueError, match="slot: 1 is taken"):
        harness.enter("b", slot=1)
    harness.enter("b")
    harness.enter("c")
    with pytest.raises(ValueError, match="slot: all are taken"):
        harness.enter("d")
    with pytest.raises(ValueError, match=r"logits: a has \(5,\), a row is \(600,\)"):
        harness.step({"a": np.zeros(5)})


def test_what_a_processor_raises_is_told_with_its_phase() -> None:
    harness = ProcessorHarness(wrong.Raises, fd_config=SMALL)
    harness.enter("a", ARGS, output=[1, 2, 3])
    with pytest.raises(StepError, match="update_state raises ZeroDivisionError") as raised:
        harness.step()
    assert isinstance(raised.value.cause, ZeroDivisionError)
