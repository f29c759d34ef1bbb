"""The number of draft tokens that a step verifies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from operator import mul
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from paddle import Tensor
from support.drafters import KnowsMost
from support.sequences import sequence
from support.tiny import tiny_fd_config

from fastdeploy_lp.config.speculation import GRAMMAR, LAYOUT, Speculation
from fastdeploy_lp.worker.drafters.drafter import NEVER, Draft, Drafter
from fastdeploy_lp.worker.drafters.drafting import TRIAL_TOKENS, Drafting, Plan
from fastdeploy_lp.worker.drafters.drafting import _lengths as lengths_of
from fastdeploy_lp.worker.drafters.forced import GrammarDrafter
from fastdeploy_lp.worker.drafters.layout import LayoutDrafter
from fastdeploy_lp.worker.drafters.layouts import Layouts
from fastdeploy_lp.worker.drafters.step_costs import ROUNDS, StepCosts
from fastdeploy_lp.worker.logits_mask import Followed, Lead, LogitsMask, Run
from fastdeploy_lp.worker.sequence import Sequence

# A pass of many tokens costs little more than one of a single token, or in proportion.
CHEAP, DEAR = {1: 1.0, 64: 1.5}, {1: 1.0, 64: 64.0}
RIGHT, ROOM = [5, 6, 7, 8, 9, 10], 64


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KnowsMost, "outputs", {"request": RIGHT})
    monkeypatch.setattr(KnowsMost, "wrong", 0.0)


def drafting(seconds: dict[int, float], *, adaptive: bool = True) -> Drafting:
    return Drafting(Speculation(num_speculative_tokens=6, adaptive=adaptive), [Exactly()], StepCosts(seconds))


class Exactly(KnowsMost):
    """Drafts what `outputs` has, whole."""

    def __init__(self) -> None:
        super().__init__(tiny_fd_config())

    def draft(self, sequence: Sequence, count: int) -> Draft | None:
        tokens = self.outputs[sequence.request_id][:count]
        return Draft(tokens, "known") if tokens else None


def lengths(made: Drafting, *sequences: Sequence, room: int = ROOM) -> list[int]:
    drafts = made.drafts(sequences, len(sequences), room)
    return [len(drafts[each.slot].tokens) if each.slot in drafts else 0 for each in sequences]


def generating(slot: int = 0, **fields: object) -> Sequence:
    return sequence([1, 2], slot=slot, output=[3], max_tokens=900, max_model_len=1000, **fields)  # type: ignore[arg-type]


def test_cheap_tokens_are_drafted_and_dear_ones_are_not() -> None:
    assert lengths(drafting(CHEAP), generating()) > [0]
    assert lengths(drafting(DEAR), generating()) == [0]
    assert lengths(drafting(DEAR, adaptive=False), generating()) == [6]


def test_right_drafts_grow_and_wrong_ones_shrink() -> None:
    made, follows = drafting({1: 1.0, 64: 30.0}), generating()
    first = lengths(made, follows)[0]
    for _ in range(12):
        follows.output_token_ids = [*follows.output_token_ids, *RIGHT]
        grown = lengths(made, follows)[0]
    assert grown > first
    for _ in range(20):
        follows.output_token_ids = [*follows.output_token_ids, 99]
        shrunk = lengths(made, follows)[0]
    assert shrunk == 0
    made.leave(0)
    # A new sequence starts from the experience of all.
    assert lengths(made, generating())[0] > 0


def test_prompts_in_a_step_make_no_draft_worth_more() -> None:
    """A draft token takes what it takes without them, and saves a part of a later step, which has none."""
    made = drafting({1: 1.0, 64: 64.0})
    assert made.drafts([generating()], 40, ROOM) == {}
    made = drafting({1: 1.0, 40: 40.0, 64: 41.0})
    assert len(made.drafts([generating()], 40, ROOM)[0].tokens) == 6


class FindsNothing(Drafter):
    """Counts how often it is asked."""

    kinds: ClassVar[dict[str, float]] = {"none": 0.5}

    def __init__(self) -> None:
        self.asked = 0

    def draft(self, sequence: Sequence, count: int) -> None:
        self.asked += 1


def test_looks_that_save_less_than_they_take_are_left_out() -> None:
    def looks(*, adaptive: bool) -> int:
        drafter, follows = FindsNothing(), generating()
        # Any look takes longer than a step of one token.
        made = Drafting(Speculation(adaptive=adaptive), [drafter], StepCosts({1: 1e-9, 2: 1e-9}))
        assert [lengths(made, follows) for _ in range(200)] == [[0]] * 200
        return drafter.asked

    assert 20 < looks(adaptive=True) < 100
    assert looks(adaptive=False) == 200


@pytest.mark.parametrize(("in_rounds", "expected"), [(True, 0), (False, 6)])
def test_a_draft_verified_at_once_costs_no_rounds(in_rounds: bool, expected: int) -> None:
    # Each token costs as much as the whole pass without it, so that only the saved first round pays for more.
    costs = StepCosts({1: 1.0, 64: 64.0})
    costs.round_seconds = 50.0
    made = Drafting(Speculation(num_speculative_tokens=6), [Exactly()], costs, lambda _: in_rounds)
    assert lengths(made, generating()) == [expected]


@pytest.mark.parametrize(("in_rounds", "expected"), [(True, 6), (False, 0)])
def test_a_draft_verified_in_rounds_costs_no_draw(
    monkeypatch: pytest.MonkeyPatch, in_rounds: bool, expected: int
) -> None:
    monkeypatch.setattr(KnowsMost, "kinds", {"known": 0.97})
    costs = StepCosts({1: 1.0, 64: 1.0})
    costs.draw_seconds = 50.0
    made = Drafting(Speculation(num_speculative_tokens=6), [Exactly()], costs, lambda _: in_rounds)
    assert lengths(made, generating()) == [expected]


class Surely(Drafter):
    """Drafts two tokens that are nearly always right."""

    kinds: ClassVar[dict[str, float]] = {"sure": 0.95}

    def draft(self, sequence: Sequence, count: int) -> Draft:
        return Draft([1, 2][:count], "sure")


@pytest.mark.parametrize(("share", "kind"), [(0.3, "sure"), (0.9, "known")])
def test_the_draft_with_most_tokens_that_are_likely_right_counts(
    monkeypatch: pytest.MonkeyPatch, share: float, kind: str
) -> None:
    monkeypatch.setattr(KnowsMost, "kinds", {"known": share})
    settings = Speculation(num_speculative_tokens=6, adaptive=False)
    made = Drafting(settings, [Exactly(), Surely()], StepCosts(CHEAP))
    assert made.drafts([generating()], 1, ROOM)[0].kind == kind


@given(
    seconds=st.lists(st.floats(0.0, 1.0), min_size=64, max_size=64),
    drafts=st.lists(
        st.tuples(st.floats(0.0, 1.0), st.integers(1, 8), st.booleans(), st.integers(0, 4)), min_size=1, max_size=8
    ),
    draw=st.floats(0.0, 2.0),
    room=st.integers(0, 64),
)
def test_no_number_of_tokens_pays_where_none_may(
    seconds: list[float], drafts: list[tuple[float, int, bool, int]], draw: float, room: int
) -> None:
    """Not even with tokens that are forced after the others."""
    costs = StepCosts({1 + tokens: took for tokens, took in enumerate(accumulate(seconds, initial=1.0))})
    costs.draw_seconds = draw
    plan = Plan(costs, len(drafts), len(drafts), room)
    chances = {slot: [share] * count + [1.0] * forced for slot, (share, count, _, forced) in enumerate(drafts)}
    rounds = {slot for slot, (_, _, in_rounds, _) in enumerate(drafts) if in_rounds}
    expected = sum(sum(accumulate(each, mul)) for each in chances.values())
    # Sums in another order differ in their last bits.
    if not plan.may_pay(max(each[0] for each in chances.values()), 1.0001 * expected, 0.0 if rounds else draw):
        assert lengths_of(chances, rounds, plan) == ({}, 0.0)


class ForcesNothing(LogitsMask):
    def apply(self, logits: Tensor, slots: NDArray[np.int64]) -> Tensor:
        return logits


def test_a_draft_follows_its_grammar_and_each_part_is_learned_from() -> None:
    """A draft that leaves the grammar at once is dropped, and one without a grammar stays."""
    runs = [Run([20], forced=True), Run([30], forced=False)]
    followed = {0: Followed(2, runs), 1: Followed(0, []), 2: Followed(4, []), 3: Followed(0, runs)}
    leads: dict[int, Lead] = {}

    def follow(drafts: Mapping[int, Lead]) -> dict[int, Followed]:
        leads.update(drafts)
        return {slot: followed[slot] for slot in drafts}

    settings = Speculation(num_speculative_tokens=4, adaptive=False)
    mask, layouts = ForcesNothing(), Layouts(lambda _: b"{")
    others = [GrammarDrafter(mask), LayoutDrafter(layouts, mask.allows)]
    made = Drafting(settings, [Exactly(), *others], StepCosts(CHEAP), follow=follow, layouts=layouts)
    guided = [generating(slot) for slot in range(4)]
    for each in guided:
        each.grammar = "start: /a/"
    drafts = made.drafts([*guided, generating(4)], 5, ROOM)
    assert {slot: (draft.tokens, draft.kind) for slot, draft in drafts.items()} == {
        0: ([*RIGHT[:2], 20, 30], "known"),
        2: (RIGHT[:4], "known"),
        3: ([20, 30], GRAMMAR),
        4: (RIGHT[:4], "known"),
    }
    assert {slot: (lead.tokens, lead.most) for slot, lead in leads.items()} == dict.fromkeys(range(4), (RIGHT[:4], 4))

    def shares() -> list[float]:
        return [made._acceptance.share(0, kind) for kind in ("known", GRAMMAR, LAYOUT)]

    before = shares()
    guided[0].output_token_ids = [*guided[0].output_token_ids, *RIGHT[:2], 20, 99]
    made.drafts(guided[:1], 1, ROOM)
    known, grammar, layout = shares()
    assert known > before[0]
    assert grammar > before[1]
    assert layout < before[2]


class Idle(Surely):
    """Has a draft, and says that it has none."""

    def begin_step(self, step: int, least_share: float) -> bool:
        return False


def test_an_idle_drafter_is_not_asked() -> None:
    made = Drafting(Speculation(adaptive=False), [Idle()], StepCosts(CHEAP))
    assert lengths(made, generating()) == [0]


class EveryThird(Surely):
    """Has drafts in every third step, while a sequence is in its slot."""

    def __init__(self) -> None:
        self.next_step, self.steps = NEVER, list[int]()

    def enter(self, sequence: Sequence) -> None:
        self.next_step = 0

    def leave(self, slot: int) -> None:
        self.next_step = NEVER

    def begin_step(self, step: int, least_share: float) -> bool:
        self.steps.append(step)
        self.next_step = step + 3
        return True


def test_no_step_before_its_next_one_calls_a_drafter() -> None:
    drafter, follows = EveryThird(), generating()
    made = Drafting(Speculation(adaptive=False), [drafter], StepCosts(CHEAP))
    assert lengths(made, follows) == [0]
    made.enter(follows)
    assert [lengths(made, follows)[0] > 0 for _ in range(5)] == [True, False, False, True, False]
    made.leave(0)
    assert [lengths(made, follows) for _ in range(3)] == [[0]] * 3
    assert drafter.steps == [2, 5]


class Told(Surely):
    """Keeps the probabilities that steps tell it."""

    def __init__(self) -> None:
        self.told: list[float] = []

    def begin_step(self, step: int, least_share: float) -> bool:
        self.told.append(least_share)
        return True


def test_drafters_are_told_what_a_token_of_each_sequence_must_have_to_pay() -> None:
    drafter = Told()
    costs = StepCosts({1: 1.0, 8: 4.0, 9: 4.0, 16: 7.0})
    costs.round_seconds = 0.0
    made = Drafting(Speculation(), [drafter], costs)
    made.drafts([generating(slot) for slot in range(8)], 8, ROOM)
    # One token more costs nothing, and 8 more three quarters of the step.
    assert drafter.told == [0.75]
    assert Plan(costs, 8, 8, ROOM).least == 0.0


class Paid(Drafter):
    """Drafts in passes that take time."""

    kinds: ClassVar[dict[str, float]] = {"paid": 0.9}

    def __init__(self, seconds: float) -> None:
        self.passes = StepCosts({1: seconds, 64: 2 * seconds})
        self.asked: list[tuple[int, int]] = []

    def prepare(self, wanted: Iterable[tuple[Sequence, int]]) -> None:
        self.asked = [(sequence.slot, count) for sequence, count in wanted]

    def draft(self, sequence: Sequence, count: int) -> Draft:
        return Draft([8] * count, "paid")


def paying(seconds: float, *others: Drafter) -> tuple[Drafting, Paid]:
    drafter = Paid(seconds)
    return Drafting(Speculation(num_speculative_tokens=6), [*others, drafter], StepCosts(CHEAP)), drafter


def test_drafts_that_take_time_are_made_only_where_they_pay_off() -> None:
    made, drafter = paying(0.1)
    assert lengths(made, generating(0), generating(1)) == [6, 6]
    assert drafter.asked == [(0, 6), (1, 6)]
    made, drafter = paying(0.6)
    assert 0 < lengths(made, generating())[0] < 6
    made, drafter = paying(2.0)
    assert lengths(made, generating()) == [0]
    assert drafter.asked == []


def test_drafts_that_take_time_are_not_made_where_better_ones_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KnowsMost, "kinds", {"known": 0.97})
    made, drafter = paying(0.1, Exactly())
    known, unknown = generating(0), generating(1)
    unknown.request_id = "unknown"
    monkeypatch.setattr(KnowsMost, "outputs", {"request": RIGHT, "unknown": []})
    drafts = made.drafts([known, unknown], 2, ROOM)
    assert {slot: draft.kind for slot, draft in drafts.items()} == {0: "known", 1: "paid"}
    assert [slot for slot, _ in drafter.asked] == [1]


def test_wrong_drafts_that_take_time_are_tried_again_now_and_then() -> None:
    made, drafter = paying(0.3)
    follows, asked = generating(), []
    for _ in range(2 * TRIAL_TOKENS + 40):
        lengths(made, follows)
        asked.append(sum(count for _, count in drafter.asked))
        follows.output_token_ids = [*follows.output_token_ids, 99]
    late = asked[20:]
    assert [count for count in late if count] == [1, 1]


def test_no_draft_passes_the_end_of_a_sequence_or_the_room_of_a_step() -> None:
    made = drafting(CHEAP, adaptive=False)
    ends = sequence([1, 2], slot=0, output=[3], max_tokens=4)
    assert lengths(made, ends) == [2]
    assert lengths(made, sequence([1, 2], slot=0, output=[3], max_tokens=2)) == [0]
    assert sum(lengths(made, generating(0), generating(1), room=7)) == 7


def test_costs_between_measurements_are_interpolated_and_never_fall() -> None:
    costs = StepCosts({1: 3.0, 2: 2.0, 4: 4.0})
    assert [costs.of(tokens) for tokens in (1, 2, 3, 4, 6)] == [2.0, 2.0, 3.0, 4.0, 6.0]
    assert StepCosts({1: 3.0}).of(9) == 3.0


def test_a_pass_never_costs_more_than_its_tokens_alone() -> None:
    """As a measurement says that other work has disturbed."""
    costs = StepCosts({1: 1.0, 2: 1.5, 4: 9.0, 8: 10.0})
    assert [costs.of(tokens) for tokens in (1, 2, 4, 8)] == [1.0, 1.5, 3.0, 6.0]
    assert StepCosts({1: 1.0, 4: 2.0, 9: 9.0}).of(9) == 5.0


def test_a_token_that_needs_another_tile_costs_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KnowsMost, "kinds", {"known": 0.97})
    costs = StepCosts({1: 1.0, 4: 1.2, 5: 2.1, 8: 2.4, 64: 19.2})
    assert [costs.of(tokens) for tokens in (4, 5, 8)] == [1.2, 2.1, 2.4]
    made = Drafting(Speculation(num_speculative_tokens=6), [Exactly()], costs, lambda _: False)
    assert lengths(made, generating()) == [3]
    assert lengths(made, *map(generating, range(4))) == [0] * 4


def test_tokens_that_fill_a_tile_pay_together_where_the_first_one_alone_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(KnowsMost, "kinds", {"known": 0.97})
    costs = StepCosts({1: 1.0, 4: 1.2, 5: 1.9, 8: 2.0})
    made = Drafting(Speculation(num_speculative_tokens=1), [Exactly()], costs, lambda _: False)
    assert lengths(made, *map(generating, range(4))) == [1] * 4
    # There is room for the dear token alone.
    assert lengths(made, *map(generating, range(4)), room=1) == [0] * 4


def test_a_draw_that_is_held_up_counts_as_a_step() -> None:
    costs = StepCosts({1: 1.0, 8: 2.0})
    before = costs.draw_seconds
    costs.draw_took(50.0)
    assert before < costs.draw_seconds < before + 0.1


@pytest.mark.parametrize(
    ("most", "sizes"),
    [(1, [1]), (2, [1, 2]), (6, [1, 2, 3, 4, 5, 6]), (8, [1, 2, 3, 4, 5, 8]), (20, [1, 2, 3, 4, 5, 8, 9, 16, 17, 20])],
)
def test_passes_of_each_size_are_measured_in_turns(most: int, sizes: list[int]) -> None:
    ran: list[int] = []
    StepCosts.measured(ran.append, most)
    assert ran == sizes * (1 + ROUNDS)
