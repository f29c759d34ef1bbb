"""Prompt look-up: where it looks, and where it leaves places out."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

import pytest
from support.sequences import sequence

from fastdeploy_lp.config.speculation import Speculation
from fastdeploy_lp.worker.drafters.drafter import NEVER, Draft
from fastdeploy_lp.worker.drafters.ngram import CHEAP, DEAR, SELDOM_RIGHT, NgramDrafter, Pace
from fastdeploy_lp.worker.sequence import Sequence

# No pair of its tokens occurs again, so that nothing is found.
NEW = list(range(100, 300))
PACES = [(0.0, CHEAP), (SELDOM_RIGHT, DEAR)]


def drafter_of(settings: Speculation, ruled_out: Collection[int] = ()) -> NgramDrafter:
    return NgramDrafter(settings, lambda _, token: token not in ruled_out)


class Steps:
    """Steps of sequences whose tokens are known: each yields one token, or a draft that is right as a whole."""

    def __init__(self, drafter: NgramDrafter, prompt: list[int], least_share: float = 0.0) -> None:
        self.drafter, self.prompt, self.least_share = drafter, prompt, least_share
        self.sequences: list[Sequence] = []
        self.number = 0

    def enter(self) -> None:
        """Adds a sequence, which enters a slot."""
        made = sequence(self.prompt, slot=len(self.sequences), output=[], max_tokens=900, max_model_len=1000)
        self.drafter.enter(made)
        self.sequences.append(made)

    def begin(self) -> bool:
        """Begins a step; returns True if a sequence is looked at in it."""
        self.number += 1
        return self.drafter.next_step <= self.number and self.drafter.begin_step(self.number, self.least_share)

    def step(self, tokens: list[list[int]]) -> list[Draft | None]:
        """The drafts by sequence before a step after which they have these further tokens."""
        drafts: list[Draft | None] = [None] * len(tokens)
        if self.begin():
            drafts = [self.drafter.draft(each, 4) for each in self.sequences]
        for each, further in zip(self.sequences, tokens, strict=True):
            for token in further:
                each.append(token)
        return drafts

    def looks(self, output: list[int]) -> list[int]:
        """The places of the output of the only sequence after which there is a draft; a right one is verified."""
        self.enter()
        found, place = [], 0
        while place <= len(output):
            (draft,) = self.step([[]])
            right = 0
            if draft is not None:
                found.append(place)
                came = output[place : place + len(draft.tokens)]
                right = next((i for i, token in enumerate(came) if token != draft.tokens[i]), len(came))
            for token in output[place : place + 1 + right]:
                self.sequences[0].append(token)
            place += 1 + right
        return found


@pytest.mark.parametrize("shortest", [1, 2, 4])
def test_what_follows_so_many_tokens_is_drafted_at_each_place(shortest: int) -> None:
    prompt, settings = list(range(20, 60)), Speculation(prompt_lookup_min=shortest)
    steps = Steps(drafter_of(settings), prompt)
    steps.enter()
    found = [place for place in range(30) if steps.step([[prompt[place]]]) != [None]]
    assert found == list(range(shortest, 30))


@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize(("least_share", "pace"), PACES)
def test_looks_are_rarer_where_drafts_were_wrong_for_long(adaptive: bool, least_share: float, pace: Pace) -> None:
    # After each new pair, the prompt continues otherwise than the output.
    prompt = [each for one, two in pairwise(NEW) for each in (one, two, 7)]
    drafter = drafter_of(Speculation(adaptive=adaptive, prompt_lookup_min=2))
    steps = [later - earlier for earlier, later in pairwise(Steps(drafter, prompt, least_share).looks(NEW))]
    assert max(steps) == (2**pace.halvings if adaptive else 1)
    assert steps[: pace.patience - 3] == [1] * (pace.patience - 3)


@pytest.mark.parametrize(("least_share", "pace"), PACES)
def test_a_repetition_is_found_late_but_whole_after_many_looks_in_vain(least_share: float, pace: Pace) -> None:
    prompt = list(range(20, 100))
    found = Steps(drafter_of(Speculation()), prompt, least_share).looks([*NEW, *prompt[:60]])
    assert len(NEW) < found[0] <= len(NEW) + 2**pace.halvings
    # From the second look on it looks in each step, and a step of a whole draft yields 5 tokens.
    assert found[1] < found[0] + 5 + 2**pace.halvings
    assert {later - earlier for earlier, later in pairwise(found[1:-1])} == {5}


def test_the_longest_match_is_followed_in_each_step() -> None:
    prompt = list(range(20, 60))
    steps = Steps(drafter_of(Speculation(prompt_lookup_max=3)), prompt, SELDOM_RIGHT)
    steps.enter()
    for token in NEW:
        steps.step([[token]])
    for token in prompt[:3]:
        steps.sequences[0].append(token)
    found = [steps.step([[token]]) != [None] for token in prompt[3:30]]
    assert found == [False] * found.index(True) + [True] * (len(found) - found.index(True))


@pytest.mark.parametrize(("least_share", "looks_in_vain"), [(0.0, False), (SELDOM_RIGHT, True)])
def test_a_right_draft_that_no_step_verified_counts_only_where_drafts_are_cheap(
    least_share: float, looks_in_vain: bool
) -> None:
    prompt = list(range(20, 100))
    # One token a step. No match is as long as the longest that counts.
    steps = Steps(drafter_of(Speculation(prompt_lookup_max=64)), prompt, least_share)
    steps.enter()
    found = [place for place, token in enumerate(prompt[:60]) if steps.step([[token]]) != [None]]
    assert (max(later - earlier for earlier, later in pairwise(found)) > 1) is looks_in_vain


def test_looks_at_several_texts_fall_into_the_same_steps() -> None:
    steps, looked = Steps(drafter_of(Speculation()), [1, 2], SELDOM_RIGHT), []
    for place in range(100):
        if place in (0, 3, 10):
            steps.enter()
        looked.append(steps.begin())
        for each in steps.sequences:
            if looked[-1]:
                steps.drafter.draft(each, 4)
            each.append(NEW[place])
    # Each text alone is looked at in every 16th step in the end.
    assert sum(looked[-32:]) == 2


def test_a_new_text_is_looked_at_at_once() -> None:
    steps = Steps(drafter_of(Speculation()), NEW)
    steps.enter()
    for token in range(900, 960):
        steps.step([[token]])
    steps.enter()
    assert steps.begin()


def test_a_text_that_a_step_was_to_look_at_and_did_not_is_due_in_the_next_step() -> None:
    steps = Steps(drafter_of(Speculation()), NEW)
    steps.enter()
    steps.enter()
    assert steps.begin()
    steps.drafter.draft(steps.sequences[0], 4)
    assert steps.begin()


def test_no_step_without_a_text_is_begun() -> None:
    steps = Steps(drafter_of(Speculation()), NEW)
    steps.enter()
    steps.drafter.leave(0)
    assert not steps.begin()
    assert steps.drafter.next_step == NEVER


@pytest.mark.parametrize(
    ("matching", "kind"), [(1, "ngram_one"), (2, "ngram"), (7, "ngram"), (8, "ngram_long"), (9, "ngram_long")]
)
def test_the_kind_of_a_draft_is_the_length_of_its_match(matching: int, kind: str) -> None:
    prompt = list(range(20, 40))
    grown = sequence(prompt, slot=0, output=prompt[10 - matching : 10], max_tokens=900, max_model_len=1000)
    drafter = drafter_of(Speculation(prompt_lookup_max=8))
    drafter.enter(grown)
    assert drafter.draft(grown, 2) == Draft(prompt[10:12], kind)


@pytest.mark.parametrize(
    ("ruled_out", "expected"),
    [([], [5, 6]), ([5], [7, 8]), ([5, 7], [3, 4]), ([3, 5, 7], None)],
    ids=str,
)
def test_a_match_counts_only_before_a_token_that_the_grammar_allows(
    ruled_out: list[int], expected: list[int] | None
) -> None:
    drafter = drafter_of(Speculation(), ruled_out)
    prompt = [1, 2, 7, 8, 1, 2, 5, 6, 9, 2, 3, 4, 1]
    for grammar in (None, "{}"):
        made = sequence(prompt, slot=0, output=[2])
        made.grammar = grammar
        drafter.enter(made)
        drafter.begin_step(1, 0.0)
        draft = drafter.draft(made, 2)
        found = None if draft is None else draft.tokens
        assert found == (expected if grammar else [5, 6])
