"""Builtins that rule tokens out by their ids, and the state of bad words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builtins import EOS, VOCAB_SIZE, check_builtin, token, without

from fastdeploy_lp.logits_processor.builtin.bans import (
    AllowedTokensLogitsProcessor,
    BadWords,
    BadWordsLogitsProcessor,
    MinTokensLogitsProcessor,
)
from fastdeploy_lp.request.sampling_params import SamplingParams
from fastdeploy_lp.worker.sequence import Sequence

few = st.integers(0, 3)
# Of the tokens that outputs here are made of.
words = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), max_size=8)


def allowed_alone(row: np.ndarray, request: Sequence) -> np.ndarray:
    return without(row, np.setdiff1d(np.arange(VOCAB_SIZE), request.selection.flat["allowed_token_ids"]))


def test_every_row_keeps_its_allowed_tokens() -> None:
    arguments = st.fixed_dictionaries({"allowed_token_ids": st.lists(token, min_size=1, max_size=9)})
    check_builtin(AllowedTokensLogitsProcessor, allowed_alone, arguments)


def without_bad_words(row: np.ndarray, request: Sequence) -> np.ndarray:
    output = request.output_token_ids
    for *beginning, last in request.selection.flat["bad_words_token_ids"]:
        if output[len(output) - len(beginning) :] == beginning and len(output) >= len(beginning):
            without(row, last)
    return row


def test_every_row_loses_the_ends_of_its_words() -> None:
    check_builtin(BadWordsLogitsProcessor, without_bad_words, st.fixed_dictionaries({"bad_words_token_ids": words}))


def without_end(row: np.ndarray, request: Sequence) -> np.ndarray:
    if len(request.output_token_ids) >= request.selection.flat["min_tokens"]:
        return row
    return without(row, sorted({*EOS, *(request.params.stop_token_ids or ())}))


def test_no_row_ends_before_its_request_wants_it_to() -> None:
    check_builtin(MinTokensLogitsProcessor, without_end, st.fixed_dictionaries({"min_tokens": st.integers(0, 8)}))


def test_more_tokens_than_there_may_be_are_refused() -> None:
    def asking(minimum: int) -> SamplingParams:
        return SamplingParams(max_tokens=4, extra_args={"min_tokens": minimum})

    MinTokensLogitsProcessor.validate_params(asking(4))
    with pytest.raises(ValueError, match="at most max_tokens, which is 4"):
        MinTokensLogitsProcessor.validate_params(asking(5))


@given(st.lists(st.lists(few, min_size=1, max_size=4), max_size=6), st.lists(few, max_size=30))
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
