"""Streams whose pieces have several tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.completions import feed, joined, many, run, step_sizes, texts

from fastdeploy_lp.engine.client.generation import Completion, completions_of
from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.request.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("interval", "steps", "pieces"),
    [
        (1, [1] * 8, [1] * 8),
        (3, [1] * 8, [1, 3, 3, 1]),
        (3, [2, 2, 2, 2], [2, 4, 2]),
        (3, [1, 5, 1, 1], [1, 5, 2]),
        (7, [1] * 8, [1, 7]),
        (100, [1] * 8, [1, 7]),
    ],
)
def test_pieces_between_the_first_and_the_last_have_as_many_tokens_as_asked_for(
    tokenizer: Tokenizer, interval: int, steps: list[int], pieces: list[int]
) -> None:
    token_ids = tokenizer.encode(" and" * 8, add_special_tokens=False)
    deltas = feed(Completion(0, tokenizer, [], stream_interval=interval), token_ids, steps)
    assert [len(delta.token_ids) for delta in deltas] == pieces
    assert joined(deltas) == " and" * 8


@many
@given(texts, st.integers(1, 9), step_sizes, st.lists(st.sampled_from(["a", "b ", "漢", "c."]), max_size=2))
def test_an_interval_changes_the_pieces_alone(
    tokenizer: Tokenizer, text: str, interval: int, sizes: list[int], stop: list[str]
) -> None:
    _, plain = run(tokenizer, text, stop, sizes)
    deltas = feed(Completion(0, tokenizer, stop, stream_interval=interval), tokenizer.encode(text), sizes)
    assert joined(deltas) == joined(plain)
    assert [token for delta in deltas for token in delta.token_ids] == [t for delta in plain for t in delta.token_ids]
    assert all(len(delta.token_ids) >= interval for delta in deltas[1:-1])


@pytest.mark.parametrize(("own", "of_the_server", "counts"), [(None, 1, 1), (None, 4, 4), (2, 4, 4), (6, 4, 6)])
def test_the_longer_one_of_two_intervals_counts(
    tokenizer: Tokenizer, own: int | None, of_the_server: int, counts: int
) -> None:
    params = SamplingParams(stream_interval=own)
    (completion,) = completions_of(params, tokenizer, stream_interval=of_the_server)
    token_ids = tokenizer.encode(" and" * 16, add_special_tokens=False)
    assert len(feed(completion, token_ids)[1].token_ids) == counts
