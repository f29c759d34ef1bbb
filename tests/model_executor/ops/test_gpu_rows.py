"""Operations on rows with Paddle's operators as they are on a GPU: other results of -inf, and no hidden waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
from numpy.typing import NDArray
from paddle import Tensor
from support.gpu_semantics import UNSET, gpu_semantics

from fastdeploy_lp.logits_processor.chain.rows import put_rows
from fastdeploy_lp.model_executor.ops.choices import KeyedRows, PaddleChoices
from fastdeploy_lp.model_executor.ops.paddle_rows import PaddleRowOps
from fastdeploy_lp.model_executor.ops.row_ops import Cut, Draws, TokenLists
from fastdeploy_lp.platforms import device_rows, host_memory
from fastdeploy_lp.worker.sampler.logprobs import token_logprobs

VOCAB_SIZE = 300
# Temperature, min_p, top_k and top_p: each filter alone, all of them, none, and greedy.
FILTERS = [
    (1.0, 0.0, 0, 1.0),
    (0.7, 0.05, 0, 1.0),
    (1.2, 0.0, 7, 1.0),
    (0.9, 0.0, 0, 0.8),
    (1.1, 0.01, 9, 0.7),
    (0, 0, 0, 1),
]


def draws_of(filters: list[tuple[float, float, int, float]]) -> Draws:
    temperature, min_p, top_k, top_p = zip(*filters, strict=True)
    uniform = np.random.default_rng(1).uniform(0.01, 1, len(filters)).astype(np.float32)
    floats = [np.array(each, np.float32) for each in (temperature, min_p, top_p)]
    return Draws(floats[0], floats[1], np.array(top_k, np.int64), floats[2], uniform)


def random_rows(rows: int, vocab_size: int = VOCAB_SIZE) -> NDArray[np.float32]:
    return 3 * np.random.default_rng(2).standard_normal((rows, vocab_size), dtype=np.float32)


@pytest.mark.parametrize("filters", [[each] for each in FILTERS] + [FILTERS, FILTERS[:-1]])
def test_a_row_without_a_token_is_found(filters: list[tuple[float, float, int, float]]) -> None:
    """Also where `max` of it is no infinity, and another row beside it is usable."""
    rows = len(filters)
    logits = np.concatenate([np.full((rows, VOCAB_SIZE), -np.inf, np.float32), random_rows(rows)])
    ops, draws = PaddleRowOps(), draws_of(filters * 2)
    expected = ops.draw(paddle.to_tensor(logits), draws, guard=True).numpy()
    with gpu_semantics():
        found = ops.draw(paddle.to_tensor(logits), draws, guard=True).numpy()
    assert found.tolist() == expected.tolist()
    assert found[:rows].tolist() == [-1] * rows
    assert (found[rows:] >= 0).all()


def test_processors_that_choose_find_a_row_without_a_token() -> None:
    logits = np.concatenate([np.full((1, VOCAB_SIZE), -np.inf, np.float32), random_rows(2)])
    keyed = KeyedRows(np.array([3, 5, 7], np.uint32), np.array([0, 9, 11], np.uint32), np.array([0, 0, 4]))
    uniforms, waits = np.full(3, 0.4, np.float32), list[str]()
    with gpu_semantics(waits.append):
        for rows in (slice(0, 3), slice(0, 1)):
            tensor = paddle.to_tensor(logits[rows])
            of_rows = KeyedRows(keyed.flips[rows], keyed.factors[rows], keyed.layers[rows])
            by_key = PaddleChoices().keyed(tensor, of_rows, uniforms[rows])
            below, _ = PaddleChoices().below_surprise(tensor, np.full(len(tensor), 4.0), uniforms[rows])
            for tokens in (by_key.numpy().tolist(), below.numpy().tolist()):
                assert tokens[0] == -1
                assert min(tokens[1:], default=0) >= 0
    assert waits == []


def test_a_row_with_one_very_low_token_is_none_without_a_token() -> None:
    logits = np.full((1, VOCAB_SIZE), -np.inf, np.float32)
    logits[0, 9] = -2e38
    with gpu_semantics():
        assert PaddleRowOps().draw(paddle.to_tensor(logits), draws_of(FILTERS[:1]), guard=True).numpy().tolist() == [9]


@pytest.mark.parametrize("cut", Cut)
def test_a_cut_leaves_a_row_without_a_token_as_it_is(cut: Cut) -> None:
    logits = np.concatenate([np.full((1, VOCAB_SIZE), -np.inf, np.float32), random_rows(2)])
    found, expected = paddle.to_tensor(logits), paddle.to_tensor(logits)
    arguments = cut, np.arange(3), np.full(3, 0.3, np.float32)
    PaddleRowOps().cut(expected, *arguments)
    with gpu_semantics():
        PaddleRowOps().cut(found, *arguments)
    np.testing.assert_array_equal(found.numpy(), expected.numpy())


def test_ruled_out_tokens_have_no_ids_and_are_not_listed() -> None:
    """As in a row in which a grammar allows three tokens."""
    logits = np.full((1, VOCAB_SIZE), -np.inf, np.float32)
    logits[0, [5, 250, 17]] = [1.0, 3.0, 2.0]
    with gpu_semantics():
        found = PaddleRowOps().logprobs(paddle.to_tensor(logits), paddle.to_tensor([17]), 10, normalize=True)
    tokens, values = found.tokens.numpy()[0].tolist(), found.values.numpy()[0].tolist()
    assert tokens[4:] == [UNSET] * 7
    told = token_logprobs(10, values, tokens, 2)
    assert told.token_ids == [17, 250, 17, 5]
    assert told.logprobs == values[:4]


@pytest.mark.parametrize(("rows", "vocab_size"), [(1, VOCAB_SIZE), (1, 151_936), (2, VOCAB_SIZE), (6, VOCAB_SIZE)])
def test_no_number_of_rows_makes_the_host_wait(rows: int, vocab_size: int) -> None:
    """With every filter, cut and list; the results are those of several rows together."""
    logits, draws, ops = random_rows(rows, vocab_size), draws_of(FILTERS[:rows]), PaddleRowOps()

    def outcome() -> list[NDArray[Any]]:
        found = [
            *(ops.draw(paddle.to_tensor(logits), draws_of([each] * rows), guard=True) for each in FILTERS),
            ops.filtered(paddle.to_tensor(logits), draws),
        ]
        for cut in Cut:
            found.append(paddle.to_tensor(logits))
            ops.cut(found[-1], cut, np.arange(rows), np.full(rows, 0.3, np.float32))
        return [each.numpy() for each in found]

    expected, waits = outcome(), list[str]()
    with gpu_semantics(waits.append):
        found = outcome()
    assert waits == []
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_the_stand_in_sees_a_wait() -> None:
    waits: list[str] = []
    with gpu_semantics(waits.append):
        paddle.cumsum(paddle.ones([1, 5]), axis=-1)
        paddle.ones([5]).argsort()
        paddle.ones([5]).nonzero()
        paddle.cumsum(paddle.ones([2, 5]), axis=-1)
    assert waits == ["cumsum of one row", "argsort of one row", "nonzero"]


ROWS, TOKENS = np.array([0, 2]), np.array([7, 9])
EDITS: dict[str, Callable[[PaddleRowOps, Tensor], object]] = {
    "mask": lambda ops, logits: ops.mask(logits, ROWS, np.full((2, -(-VOCAB_SIZE // 32)), 5, np.int32)),
    "force": lambda ops, logits: ops.force(logits, ROWS, TOKENS),
    "allow_only": lambda ops, logits: ops.allow_only(logits, TokenLists.of(ROWS.tolist(), [TOKENS, TOKENS])),
    "cut": lambda ops, logits: ops.cut(logits, Cut.MIN_P, ROWS, np.full(2, 0.3, np.float32)),
    "filtered": lambda ops, logits: ops.filtered(logits, draws_of(FILTERS[:4])),
    "draw": lambda ops, logits: ops.draw(logits, draws_of(FILTERS[:3] + FILTERS[-1:]), guard=True),
    "put_rows": lambda _, logits: put_rows(logits, ROWS, paddle.ones([2, VOCAB_SIZE])),
}


@pytest.mark.parametrize("edit", EDITS)
def test_whole_rows_are_written_without_an_index_of_every_element(edit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`index_put_` with rows alone builds one on a GPU."""
    put, by_row = Tensor.index_put_, list[int]()

    def watched(self: Tensor, indices: tuple[Tensor, ...], *args: Any, **kwargs: Any) -> Tensor:
        if len(indices) < self.ndim:
            by_row.append(self.ndim)
        return put(self, indices, *args, **kwargs)

    monkeypatch.setattr(Tensor, "index_put_", watched)
    monkeypatch.setattr(host_memory, "in_host_memory", lambda _: False)
    monkeypatch.setattr("fastdeploy_lp.logits_processor.chain.rows.in_host_memory", lambda _: False)
    EDITS[edit](PaddleRowOps(), paddle.to_tensor(random_rows(4)))
    assert by_row == []


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bfloat16"])
def test_rows_of_every_type_are_written_in_place(dtype: str) -> None:
    target = paddle.zeros([4, 3], dtype)
    address = target.data_ptr()
    device_rows.write_rows(target, paddle.to_tensor([3, 1]), paddle.to_tensor([[1, 2, 3], [4, 5, 6]], dtype))
    assert target.data_ptr() == address
    assert target.astype("float32").numpy().tolist() == [[0, 0, 0], [4, 5, 6], [0, 0, 0], [1, 2, 3]]
