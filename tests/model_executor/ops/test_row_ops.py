"""Operations on rows of logits: each implementation against plain numpy, and both against one another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.row_ops import ROW_OPS, make_row_ops

from fastdeploy_lp.model_executor.ops.row_ops import Draws, Penalties, RowOps, TokenLists

# Around the widths and block sizes of the compiled loops.
SIZES = [1, 2, 7, 8, 15, 16, 17, 40, 511, 512, 513, 1000, 4097]
WHOLE = 2.0**32
few = settings(max_examples=40)


@pytest.fixture(scope="module", params=ROW_OPS)
def ops(request: pytest.FixtureRequest) -> RowOps:
    return make_row_ops(request.param)


@pytest.fixture(scope="module")
def compiled() -> RowOps:
    return make_row_ops("compiled")


@dataclass
class Case:
    """Random rows with their draws."""

    logits: np.ndarray
    draws: Draws

    def row(self, row: int) -> Case:
        return Case(self.logits[row : row + 1].copy(), self.draws.of(np.array([row])))


@st.composite
def cases(draw: st.DrawFn, *, greedy: bool = True) -> Case:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows, size = draw(st.integers(1, 6)), draw(st.sampled_from(SIZES))
    logits = rng.standard_normal((rows, size), dtype=np.float32) * np.float32(draw(st.sampled_from([0.1, 2.0, 12.0])))
    if draw(st.booleans()):  # ties
        logits = np.round(logits)
    if draw(st.booleans()) and size > 2:
        logits[:, rng.choice(size, size // 2, replace=False)] = -np.inf
    return Case(logits, random_draws(rng, rows, greedy=greedy))


def random_draws(rng: np.random.Generator, rows: int, *, greedy: bool = True) -> Draws:
    temperatures = [0.0, 0.02, 0.7, 1.0, 3.0] if greedy else [0.02, 0.7, 1.0, 3.0]
    return Draws(
        temperature=rng.choice(temperatures, rows).astype(np.float32),
        min_p=rng.choice([0.0, 0.0, 0.01, 0.3, 1.0], rows).astype(np.float32),
        top_k=rng.choice([0, 0, 1, 3, 50, 600, 10**6], rows).astype(np.int64),
        top_p=rng.choice([1.0, 1.0, 0.999, 0.9, 0.5, 1e-6], rows).astype(np.float32),
        uniform=(rng.integers(1, 2**24 + 1, rows) * 2.0**-24).astype(np.float32),
    )


def kept_weights(logits: np.ndarray, draws: Draws) -> np.ndarray:
    """Of one row, by sorting it, what the filters keep: whole numbers, 0 for what they leave out."""
    with np.errstate(invalid="ignore"):
        below = logits.astype(np.float64) - np.float64(logits.max())
    weights = np.floor(np.exp(below * (1.0 / np.float64(draws.temperature[0]))) * WHOLE)
    weights[weights < np.float64(draws.min_p[0]) * WHOLE] = 0.0
    order = np.argsort(-logits, kind="stable")
    if draws.top_k[0] > 0:
        weights[order[draws.top_k[0] :]] = 0.0
    before = np.cumsum(weights[order]) - weights[order]
    weights[order[before >= np.float64(draws.top_p[0]) * weights.sum()]] = 0.0
    return weights


def reference_token(logits: np.ndarray, draws: Draws) -> int:
    if draws.temperature[0] == 0:
        return int(logits.argmax())
    cumulated = np.cumsum(kept_weights(logits, draws))
    return int((cumulated < np.float64(draws.uniform[0]) * cumulated[-1]).sum())


# Draws


@few
@given(cases())
def test_a_draw_is_the_one_that_sorting_the_row_gives(ops: RowOps, case: Case) -> None:
    tokens = ops.draw(paddle.to_tensor(case.logits), case.draws, guard=True).numpy()
    singles = [case.row(row) for row in range(len(tokens))]
    assert tokens.tolist() == [reference_token(each.logits[0], each.draws) for each in singles]


@few
@given(cases())
def test_a_row_is_drawn_alone_as_among_others(ops: RowOps, case: Case) -> None:
    together = ops.draw(paddle.to_tensor(case.logits), case.draws, guard=False).tolist()
    singles = [case.row(row) for row in range(len(together))]
    alone = [ops.draw(paddle.to_tensor(each.logits), each.draws, guard=False).tolist()[0] for each in singles]
    assert together == alone


@pytest.mark.parametrize("greatest", [1e6, 3e7, 1e30])
def test_large_logits_at_a_low_temperature_keep_their_weights(ops: RowOps, greatest: float) -> None:
    """Neighboring floats of this size differ by as much as the depth to which logits have a weight."""
    logits = np.full((4, 600), greatest, np.float32)
    logits[:, 200:400] = np.nextafter(np.float32(greatest), np.float32(0))
    logits[:, 400:] = -greatest
    uniform = np.array([0.2, 0.6, 0.99, 1.0], np.float32)
    zeros, ones = np.zeros(4, np.float32), np.ones(4, np.float32)
    draws = Draws(ones * np.float32(0.02), zeros, np.zeros(4, np.int64), ones, uniform)
    case = Case(logits, draws)
    expected = [reference_token(logits[row], case.row(row).draws) for row in range(4)]
    assert ops.draw(paddle.to_tensor(logits), draws, guard=True).tolist() == expected


@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_both_implementations_draw_the_same_from_a_whole_vocabulary(compiled: RowOps, scale: float) -> None:
    rng = np.random.default_rng(int(scale))
    paddles = make_row_ops("paddle")
    for _ in range(2):
        logits = paddle.to_tensor(rng.standard_normal((32, 49152), dtype=np.float32) * np.float32(scale))
        draws = random_draws(rng, 32, greedy=False)
        assert (compiled.draw(logits, draws, guard=True) == paddles.draw(logits, draws, guard=True)).all()


@few
@given(cases())
def test_filtered_logits_are_what_a_draw_can_reach(ops: RowOps, case: Case) -> None:
    result = ops.filtered(paddle.to_tensor(case.logits), case.draws).numpy()
    for row in range(len(result)):
        logits, draws = case.logits[row], case.row(row).draws
        if draws.temperature[0] == 0:
            np.testing.assert_array_equal(result[row], logits)
            continue
        scaled = (logits.astype(np.float64) * (1.0 / np.float64(draws.temperature[0]))).astype(np.float32)
        filters = draws.min_p[0] > 0 or draws.top_k[0] > 0 or draws.top_p[0] < 1
        if filters:
            scaled[kept_weights(logits, draws) == 0] = -np.inf
        np.testing.assert_array_equal(result[row], scaled)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_guard_marks_rows_without_a_usable_logit(ops: RowOps, size: int, temperature: float) -> None:
    logits = np.zeros((5, size), np.float32)
    logits[1] = -np.inf
    logits[2, size // 2] = np.nan
    logits[3, size - 1] = np.inf
    logits[4, : size - 1] = -np.inf
    draws = Draws(
        np.full(5, temperature, np.float32),
        np.zeros(5, np.float32),
        np.zeros(5, np.int64),
        np.ones(5, np.float32),
        np.full(5, 0.5, np.float32),
    )
    tokens = ops.draw(paddle.to_tensor(logits), draws, guard=True).tolist()
    assert tokens[1:4] == [-1, -1, -1]
    assert tokens[0] >= 0
    assert tokens[4] == size - 1


# Logprobs


@few
@given(cases(), st.integers(0, 20), st.booleans())
def test_logprobs_are_those_of_a_log_softmax(ops: RowOps, case: Case, count: int, normalize: bool) -> None:
    logits = case.logits
    chosen = logits.argmax(axis=1) if case.draws.uniform[0] < 0.5 else np.zeros(len(logits), np.int64)
    found = ops.logprobs(paddle.to_tensor(logits), paddle.to_tensor(chosen), count, normalize=normalize)
    values, tokens, ranks = found.values.numpy(), found.tokens.numpy(), found.ranks.numpy()
    count = min(count, logits.shape[1])
    assert values.shape == tokens.shape == (len(logits), 1 + count)
    expected = logits.astype(np.float64)
    if normalize:
        highest = expected.max(axis=1, keepdims=True)
        expected = expected - highest - np.log(np.exp(expected - highest).sum(axis=1, keepdims=True))
    np.testing.assert_array_equal(tokens[:, 0], chosen)
    np.testing.assert_allclose(values, np.take_along_axis(expected, tokens, 1), rtol=1e-6, atol=1e-6)
    for row in range(len(logits)):
        ranked = np.sort(-logits[row])[:count]
        np.testing.assert_array_equal(-logits[row][tokens[row, 1:]], ranked)
        assert len(set(tokens[row, 1:].tolist())) == count
        assert ranks[row] == 1 + (logits[row] > logits[row, chosen[row]]).sum()


@few
@given(cases(), st.integers(1, 20))
def test_of_equal_tokens_the_compiled_list_holds_the_first(compiled: RowOps, case: Case, count: int) -> None:
    chosen = paddle.zeros([len(case.logits)], "int64")
    tokens = compiled.logprobs(paddle.to_tensor(case.logits), chosen, count, normalize=True).tokens.numpy()
    order = np.argsort(-case.logits, axis=1, kind="stable")
    np.testing.assert_array_equal(tokens[:, 1:], order[:, :count])


# Edits


@st.composite
def token_lists(draw: st.DrawFn, rows: int, size: int) -> TokenLists:
    listed = sorted(draw(st.sets(st.integers(0, rows - 1), min_size=1)))
    tokens = st.sets(st.integers(0, size - 1), min_size=1, max_size=30)
    return TokenLists.of(listed, [np.array(sorted(draw(tokens)), np.int64) for _ in listed])


@few
@given(st.data())
def test_penalties_change_the_listed_tokens_alone(ops: RowOps, data: st.DataObject) -> None:
    case = data.draw(cases())
    lists = data.draw(token_lists(*case.logits.shape))
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    counts = rng.integers(0, 4, len(lists.tokens))
    rates = [
        rng.choice(choice, len(lists.rows)).astype(np.float32) for choice in ([1.0, 1.3, 0.5], [0, 0.7], [0, -1.1])
    ]
    expected = case.logits.astype(np.float64)
    repetition, presence, frequency = (np.repeat(each.astype(np.float64), np.diff(lists.offsets)) for each in rates)
    at = (lists.row_of_token, lists.tokens)
    logit = expected[at]
    logit = np.where(logit > 0, logit / repetition, logit * repetition)
    expected[at] = logit - frequency * counts - presence * (counts > 0)
    logits = paddle.to_tensor(case.logits)
    ops.penalize(logits, Penalties(lists, counts, *rates))
    np.testing.assert_array_equal(logits.numpy(), expected.astype(np.float32))


@few
@given(st.data())
def test_bans_and_allowed_tokens_touch_nothing_else(ops: RowOps, data: st.DataObject) -> None:
    case = data.draw(cases())
    lists = data.draw(token_lists(*case.logits.shape))
    at = (lists.row_of_token, lists.tokens)
    banned, allowed = case.logits.copy(), case.logits.copy()
    banned[at] = -np.inf
    allowed[lists.rows] = -np.inf
    allowed[at] = case.logits[at]
    first, second = paddle.to_tensor(case.logits), paddle.to_tensor(case.logits)
    ops.ban(first, *at)
    ops.allow_only(second, lists)
    np.testing.assert_array_equal(first.numpy(), banned)
    np.testing.assert_array_equal(second.numpy(), allowed)


@few
@given(st.data())
def test_a_mask_leaves_what_its_bits_allow(ops: RowOps, data: st.DataObject) -> None:
    case = data.draw(cases())
    rows, size = case.logits.shape
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    masked = np.array(sorted(data.draw(st.sets(st.integers(0, rows - 1), min_size=1))))
    words = -(-size // 32)
    # Whole words of one kind are frequent in real masks; bits beyond the vocabulary may be anything.
    bits = rng.integers(-(2**31), 2**31, (len(masked), words)).astype(np.int32)
    bits[rng.random(bits.shape) < 0.3] = 0
    bits[rng.random(bits.shape) < 0.3] = -1
    allowed = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")[:, :size].astype(bool)
    expected = case.logits.copy()
    expected[masked] = np.where(allowed, expected[masked], -np.inf)
    logits = paddle.to_tensor(case.logits)
    ops.mask(logits, masked, bits)
    np.testing.assert_array_equal(logits.numpy(), expected)


def test_logits_that_do_not_lie_in_a_row_are_edited_and_drawn_from_too(ops: RowOps) -> None:
    values = np.random.default_rng(0).standard_normal((4, 64), dtype=np.float32)
    across = paddle.to_tensor(values.T.copy()).T
    expected = values.copy()
    expected[1, 3] = -np.inf
    ops.ban(across, np.array([1]), np.array([3]))
    np.testing.assert_array_equal(across.numpy(), expected)
    zeros, ones = np.zeros(4, np.float32), np.ones(4, np.float32)
    ops.mask(across, np.array([2]), np.array([[-1, 7]], np.int32))
    expected[2, 35:] = -np.inf
    np.testing.assert_array_equal(across.numpy(), expected)
    greedy = Draws(zeros, zeros, np.zeros(4, np.int64), ones, ones)
    assert ops.draw(across, greedy, guard=True).tolist() == expected.argmax(axis=1).tolist()
