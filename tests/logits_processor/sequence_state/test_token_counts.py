from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_lp.logits_processor.builtin.penalties import TokenCounts

tokens = st.integers(0, 200)


@given(st.lists(tokens, max_size=100), st.lists(st.lists(tokens, max_size=40), max_size=10))
def test_counts_follow_the_live_list(prompt: list[int], gained: list[list[int]]) -> None:
    output: list[int] = []
    counts = TokenCounts(prompt, output)
    for more in [[], *gained]:
        output += more
        distinct, times = counts.catch_up()
        found = dict(zip(distinct.tolist(), times.tolist(), strict=True))
        assert len(found) == len(distinct)
        assert found == {token: Counter(output)[token] for token in {*prompt, *output}}


def test_what_was_generated_before_counts_too() -> None:
    distinct, times = TokenCounts([5, 5], [5, 7, 7]).catch_up()
    assert dict(zip(distinct.tolist(), times.tolist(), strict=True)) == {5: 1, 7: 2}
