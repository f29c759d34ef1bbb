"""A processor that works only with arguments is shown its users' rows alone, and so cannot change any other row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pytest
from pydantic import BaseModel
from support.outcomes import engine_with, run
from support.sequences import request

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessor
from fastdeploy_lp.messages import AddRequest

FORCED = 77


class ForceParams(BaseModel):
    force: int
    wild: bool = False
    fault: Literal["nan", "raise"] | None = None


class Forces(LogitsProcessor):
    """Forces a token in its users' rows; a wild one writes to every row that it is shown."""

    Params = ForceParams
    only_with_args = True

    def __init__(self, fd_config: FDConfig) -> None:
        self._rows: list[tuple[int, int]] = []

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        slots = np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist()
        args = [share_inputs["logits_processors_args"][slot] for slot in slots]
        self._rows = [(row, each.force) for row, each in enumerate(args) if each.force is not None]
        self._wild = any(each.wild for each in args)
        self._faults = {each.fault: row for row, each in enumerate(args) if each.fault is not None}

    def apply(self, logits: Any) -> Any:
        if self._wild:
            logits[:] = 5.0
        for row, token in self._rows:
            logits[row] = -np.inf
            logits[row, token] = 0.0
        if "raise" in self._faults:
            logits[:] = 7.0
            raise RuntimeError("broken")
        if "nan" in self._faults:
            logits[self._faults["nan"]] = np.nan
        return logits


def users(*, wild: bool) -> list[AddRequest]:
    args = {"force": FORCED, "wild": wild}
    lengths = [2, 5, 3]
    return [
        request(f"user{index}", [index + 1, 5], max_tokens=length, logits_processors_args=args)
        for index, length in enumerate(lengths)
    ]


def others() -> list[AddRequest]:
    made = [request(f"plain{index}", [index + 1, 2, 3], max_tokens=4) for index in range(3)]
    return [*made, request("biased", [4], max_tokens=4, logits_processors_args={"logit_bias": {9: 50.0}})]


@pytest.mark.parametrize("wild", [False, True])
def test_neighbours_in_the_same_group_have_the_bits_they_would_have_had(wild: bool) -> None:
    engine = engine_with(Forces)
    calm = run(engine, *others())
    mixed = [each for pair in zip(users(wild=wild), others()[:3], strict=True) for each in pair]
    outcome = run(engine, *mixed, others()[3])
    assert outcome.errors == {}
    for name, tokens in calm.tokens.items():
        assert outcome.tokens[name] == tokens
        for step in range(4):
            np.testing.assert_array_equal(
                outcome.rows[name, step].view(np.uint32), calm.rows[name, step].view(np.uint32), err_msg=name
            )
    assert outcome.tokens["user1"] == [FORCED] * 5


def test_a_step_in_which_no_user_has_a_row_is_left_alone() -> None:
    """The user's prompt takes several steps, in which its neighbour generates."""
    engine = engine_with(Forces, max_num_seqs=4)
    long = request("user", [1, 2] * 25, max_tokens=2, logits_processors_args={"force": FORCED, "wild": True})
    calm = run(engine, request("plain", [1], max_tokens=6)).tokens["plain"]
    outcome = run(engine, request("plain", [1], max_tokens=6), long)
    assert outcome.tokens == {"plain": calm, "user": [FORCED] * 2}


@pytest.mark.parametrize(("fault", "ended"), [("nan", {"faulty"}), ("raise", {"faulty", "user0", "user1", "user2"})])
def test_a_fault_ends_none_but_users_and_nan_its_own_request_alone(fault: str, ended: set[str]) -> None:
    engine = engine_with(Forces, max_num_seqs=8)
    calm = run(engine, *others())
    args = {"force": FORCED, "fault": fault}
    faulty = request("faulty", [9, 9], max_tokens=3, logits_processors_args=args)
    outcome = run(engine, *others(), *users(wild=False), faulty)
    assert set(outcome.errors) == ended
    assert all("Forces" in error for error in outcome.errors.values())
    for name, tokens in calm.tokens.items():
        assert outcome.tokens[name] == tokens
    if fault == "nan":
        assert outcome.tokens["user1"] == [FORCED] * 5
