"""A request that loses its slot on the way, and comes back, gets the tokens that it would have got."""

from __future__ import annotations

from typing import Any

import pytest
from support.phrases_in_use import PHRASES_IN_USE
from support.sequences import Ran, request, tiny_engine

from fastdeploy_lp.messages import AddRequest


def requests(args: dict[str, Any]) -> list[AddRequest]:
    """Greedy and random ones, some of which use the processor."""
    sampling: list[dict[str, Any]] = [{}, {"temperature": 1.5}]
    return [
        request(
            f"r{index}",
            [index + 3, 9, 2],
            max_tokens=12,
            seed=index,
            logits_processors_args=args if index % 3 else None,
            **sampling[index % 2],
        )
        for index in range(7)
    ]


def run(noun: str, *, every: int | None) -> dict[str, list[int]]:
    """The tokens of all requests; the youngest is preempted before each `every`-th step."""
    core = tiny_engine([f"{noun}LogitsProcessor"], max_num_seqs=4, eos_token_ids=(0,))
    ran: dict[str, Ran] = {}
    for made in requests(PHRASES_IN_USE[noun]):
        core.add(made)
    steps = 0
    while core.has_work:
        steps += 1
        if every is not None and steps % every == 0 and core.scheduler.num_running > 1:
            core.scheduler.preempt()
        for step in core.step().steps:
            ran.setdefault(step.request_id, Ran()).take(step)
    assert (core.scheduler.num_preemptions > 0) == (every is not None)
    return {name: each.token_ids for name, each in ran.items()}


# Time that is up at once ends every output with its first token.
@pytest.mark.parametrize("noun", sorted(set(PHRASES_IN_USE) - {"MaxTime"}))
def test_preemption_does_not_show(noun: str) -> None:
    undisturbed = run(noun, every=None)
    for every in (2, 3):
        assert run(noun, every=every) == undisturbed
