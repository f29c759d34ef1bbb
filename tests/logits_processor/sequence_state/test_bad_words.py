from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_lp.logits_processor.builtin.bans import BadWords

tokens = st.integers(0, 3)


@given(st.lists(st.lists(tokens, min_size=1, max_size=4), max_size=6), st.lists(tokens, max_size=30))
def test_output_that_heeds_the_bans_never_holds_a_bad_word(words: list[list[int]], wishes: list[int]) -> None:
    bad = BadWords(words)
    output: list[int] = []
    for wish in wishes:
        banned = bad.banned(output).tolist()
        completed = [word[-1] for word in words if [*output, word[-1]][-len(word) :] == word]
        assert sorted(set(banned)) == sorted(set(completed))
        allowed = [token for token in (wish, *range(4)) if token not in banned]
        if not allowed:
            return
        output.append(allowed[0])
    text = ",".join(map(str, output))
    assert all(",".join(map(str, word)) not in text for word in words)


def test_a_word_longer_than_the_output_bans_nothing_yet() -> None:
    bad = BadWords([[1, 2, 3]])
    assert bad.banned([]).tolist() == []
    assert bad.banned([2]).tolist() == []
    assert bad.banned([1, 2]).tolist() == [3]
    assert bad.banned([0, 1, 2]).tolist() == [3]
