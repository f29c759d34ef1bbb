"""The arithmetic of pooling."""

from __future__ import annotations

import itertools

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fastdeploy_lp.request.pooling_params import POOLING_TYPES, TOKEN_POOLING
from fastdeploy_lp.worker.prompt_pooling import POOLINGS

hidden_states = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 40), st.integers(1, 5)),
    elements=st.floats(-(2.0**20), 2.0**20, width=32, allow_subnormal=False),
)


def pooled(kind: str, hidden: np.ndarray, cuts: list[int]) -> np.ndarray:
    """The result for hidden states [tokens, hidden_size] given in pieces that end at `cuts`."""
    made = POOLINGS[kind]()
    for piece in np.split(hidden, sorted(cuts)):
        if len(piece):
            made.take(paddle.to_tensor(piece))
    found: np.ndarray = made.result().numpy()
    return found


def test_every_pooling_that_a_request_may_ask_for_is_there() -> None:
    assert tuple(POOLINGS) == (*POOLING_TYPES, TOKEN_POOLING)


@settings(max_examples=60)
@given(hidden_states, st.data())
def test_the_mean_has_the_same_bits_however_the_tokens_are_cut_and_ordered(
    hidden: np.ndarray, data: st.DataObject
) -> None:
    whole = pooled("mean", hidden, [])
    cuts = data.draw(st.lists(st.integers(0, len(hidden)), max_size=4))
    order = data.draw(st.permutations(range(len(hidden))))
    for other in (pooled("mean", hidden, cuts), pooled("mean", hidden[list(order)], [])):
        np.testing.assert_array_equal(whole.view(np.uint32), other.view(np.uint32))
    # Rounded once: a half of the last place of float32, and what is below the fine steps.
    exact = hidden.astype(np.longdouble).mean(axis=0)
    np.testing.assert_allclose(whole, exact, rtol=2.0**-24, atol=2.0**-46)


@settings(max_examples=50)
@given(hidden_states, st.data())
def test_the_last_token_is_given_as_it_is(hidden: np.ndarray, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(hidden)), max_size=4))
    np.testing.assert_array_equal(pooled("last", hidden, cuts), hidden[-1])


@settings(max_examples=50)
@given(hidden_states, st.data())
def test_every_token_is_given_as_it_is(hidden: np.ndarray, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(hidden)), max_size=4))
    np.testing.assert_array_equal(pooled(TOKEN_POOLING, hidden, cuts), hidden)


def test_what_a_pass_writes_later_does_not_show() -> None:
    made = POOLINGS[TOKEN_POOLING]()
    buffer = paddle.ones([2, 3])
    made.take(buffer)
    buffer.fill_(7.0)
    made.take(buffer)
    np.testing.assert_array_equal(made.result().numpy(), [[1.0] * 3] * 2 + [[7.0] * 3] * 2)


def test_a_long_prompt_of_large_numbers_is_summed_exactly() -> None:
    """Half a million and a bit, 2^15 times: plain float32 would have lost the bit."""
    hidden = np.full((2**15, 3), 2.0**19 + 0.125, np.float32)
    hidden[::2] = -(2.0**19)
    np.testing.assert_array_equal(pooled("mean", hidden, [5, 1000]), np.full(3, 0.0625, np.float32))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_no_order_loses_what_is_small_beside_what_cancels(order: tuple[int, ...]) -> None:
    """Adding in plain float64, the large number would swallow the small one in some orders and not in others."""
    hidden = np.array([[2.0**20], [3 * 2.0**-40], [-(2.0**20)]], np.float32)[list(order)]
    for cuts in ([], [1], [1, 2]):
        assert pooled("mean", hidden, cuts).tolist() == [2.0**-40]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", POOLING_TYPES)
def test_what_is_not_finite_does_not_become_finite(kind: str, bad: float) -> None:
    hidden = np.ones((3, 2), np.float32)
    hidden[2, 1] = bad
    vector = pooled(kind, hidden, [1])
    assert np.isfinite(vector).tolist() == [True, False]


@pytest.mark.parametrize("kind", POOLINGS)
def test_nothing_can_not_be_pooled(kind: str) -> None:
    with pytest.raises(RuntimeError, match="no hidden state"):
        POOLINGS[kind]().result()
