"""Prompt look-up: where it looks, and where it leaves places out."""

from __future__ import annotations

from itertools import pairwise

import pytest
from support.sequences import sequence

from fastdeploy_lp.config.speculation import Speculation
from fastdeploy_lp.worker.drafters.drafter import Draft
from fastdeploy_lp.worker.drafters.ngram import MOST_LEFT_OUT, PATIENCE, NgramDrafter

# No pair of its tokens occurs again, so that nothing is found.
NEW = list(range(100, 300))


def looks(drafter: NgramDrafter, output: list[int], prompt: list[int]) -> list[int]:
    """The places of the output after which the drafter drafts something."""
    grown = sequence(prompt, slot=0, output=[], max_tokens=900, max_model_len=1000)
    found = []
    for place, token in enumerate(output):
        grown.append(token)
        if drafter.draft(grown, 4) is not None:
            found.append(place + 1)
    return found


@pytest.mark.parametrize("shortest", [1, 2, 5])
def test_what_follows_so_many_tokens_is_drafted_at_each_place(shortest: int) -> None:
    prompt, settings = list(range(20, 60)), Speculation(prompt_lookup_min=shortest)
    assert looks(NgramDrafter(settings), prompt[:30], prompt) == list(range(shortest, 31))


@pytest.mark.parametrize("adaptive", [True, False])
def test_places_are_left_out_where_drafts_were_wrong_for_long(adaptive: bool) -> None:
    # After each new pair, the prompt continues otherwise than the output.
    prompt = [each for one, two in pairwise(NEW) for each in (one, two, 7)]
    drafter = NgramDrafter(Speculation(adaptive=adaptive, prompt_lookup_min=2))
    steps = [later - earlier for earlier, later in pairwise(looks(drafter, NEW, prompt))]
    assert max(steps) == (1 + MOST_LEFT_OUT if adaptive else 1)
    assert steps[: PATIENCE - 2] == [1] * (PATIENCE - 2)


def test_a_repetition_is_found_late_but_whole_after_many_looks_in_vain() -> None:
    prompt = list(range(20, 60))
    found = looks(NgramDrafter(Speculation()), [*NEW, *prompt[:30]], prompt)
    assert len(NEW) < found[0] <= len(NEW) + 1 + MOST_LEFT_OUT
    # From the first right guess on it looks at each place.
    assert found[1:] == list(range(found[1], len(NEW) + 31))
    assert found[1] <= found[0] + 1 + MOST_LEFT_OUT


@pytest.mark.parametrize(
    ("matching", "kind"), [(1, "ngram_one"), (2, "ngram"), (7, "ngram"), (8, "ngram_long"), (9, "ngram_long")]
)
def test_the_kind_of_a_draft_is_the_length_of_its_match(matching: int, kind: str) -> None:
    prompt = list(range(20, 40))
    grown = sequence(prompt, slot=0, output=prompt[10 - matching : 10], max_tokens=900, max_model_len=1000)
    assert NgramDrafter(Speculation(prompt_lookup_max=8)).draft(grown, 2) == Draft(prompt[10:12], kind)
