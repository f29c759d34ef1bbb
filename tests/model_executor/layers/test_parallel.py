"""Layers of which every rank holds a part give what the whole layer gives."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from support.device_like import device_like
from support.ranks import ThreadCommunicator, on_ranks

from fastdeploy_lp.model_executor.decoder_weights import LinearWeights
from fastdeploy_lp.model_executor.layers.linear import Linear
from fastdeploy_lp.model_executor.layers.parallel import Embedding, TiedHead, row_parallel, vocab_layers
from fastdeploy_lp.model_executor.loader.split import Section
from fastdeploy_lp.model_executor.parallel.communicator import SINGLE_RANK

HIDDEN, TOKENS = 12, 5
RANDOM = np.random.default_rng(3)


def matrix(rows: int, columns: int) -> np.ndarray:
    return RANDOM.standard_normal((rows, columns)).astype(np.float32)


# A vocabulary that comes out even, one whose last rank has fewer tokens, and ones whose last ranks have one or none.
@pytest.mark.parametrize(("vocab_size", "ranks"), [(24, 2), (25, 3), (7, 3), (5, 4)])
def test_embedding_and_head(vocab_size: int, ranks: int) -> None:
    weight, bias, token_ids = matrix(vocab_size, HIDDEN), matrix(1, vocab_size)[0], np.arange(vocab_size)
    hidden = paddle.to_tensor(matrix(TOKENS, HIDDEN))

    def work(communicator: ThreadCommunicator) -> tuple[np.ndarray, np.ndarray, list[str]]:
        held = Section(vocab_size).part(communicator.rank, ranks)
        if held.start == held.stop:
            held = slice(0, 0)
        head_weights = LinearWeights(weight[held], bias[held])
        embedding, head = vocab_layers(weight[held], head_weights, None, vocab_size, communicator)
        return embedding(paddle.to_tensor(token_ids)).numpy(), head(hidden).numpy(), communicator.calls

    results = on_ranks(ranks, work)
    for embedded, _, calls in results:
        np.testing.assert_array_equal(embedded, weight)
        assert calls == ["all_reduce", "gather"]
    np.testing.assert_allclose(results[0][1], hidden.numpy() @ weight.T + bias, atol=1e-5)
    assert results[0][1].flags.c_contiguous


@pytest.mark.parametrize(("vocab_size", "ranks"), [(24, 1), (24, 2), (25, 3), (5, 4)])
def test_on_a_device_a_head_without_a_weight_reads_that_of_the_embedding(vocab_size: int, ranks: int) -> None:
    """The largest matrix of a small model would be there twice. Also where a rank has no tokens."""
    weight, hidden = matrix(vocab_size, HIDDEN), paddle.to_tensor(matrix(TOKENS, HIDDEN))
    with device_like():
        embedding, head = vocab_layers(weight, None, None, vocab_size, SINGLE_RANK)
        assert isinstance(embedding, Embedding)
        assert isinstance(head, TiedHead)
        assert head.weight is embedding.weight

        def work(communicator: ThreadCommunicator) -> np.ndarray:
            held = Section(vocab_size).part(communicator.rank, ranks)
            part = weight[held] if held.start < held.stop else weight[:0]
            _, head = vocab_layers(part, None, None, vocab_size, communicator)
            return np.array(head(hidden).numpy())

        logits = head(hidden).numpy() if ranks == 1 else on_ranks(ranks, work)[0]
    np.testing.assert_allclose(logits, hidden.numpy() @ weight.T, atol=1e-5)


def test_on_the_cpu_a_head_keeps_the_layout_in_which_its_product_is_faster() -> None:
    _, head = vocab_layers(matrix(24, HIDDEN), None, None, 24, SINGLE_RANK)
    assert isinstance(head, Linear)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_product_whose_inputs_are_divided(ranks: int) -> None:
    """The first rank alone has the bias."""
    weight, bias, x = matrix(8, HIDDEN), matrix(1, 8)[0], matrix(TOKENS, HIDDEN)

    def work(communicator: ThreadCommunicator) -> np.ndarray:
        part = Section(HIDDEN).part(communicator.rank, ranks)
        layer = row_parallel(LinearWeights(weight[:, part], None if communicator.rank else bias), None, communicator)
        return np.array(layer(paddle.to_tensor(np.ascontiguousarray(x[:, part]))).numpy())

    for result in on_ranks(ranks, work):
        np.testing.assert_allclose(result, x @ weight.T + bias, atol=1e-5)


def test_a_model_that_is_not_shared_has_the_plain_layers() -> None:
    weights = LinearWeights(matrix(8, HIDDEN))
    assert type(row_parallel(weights, None, SINGLE_RANK)) is Linear
    embedding, head = vocab_layers(weights.weight, weights, None, 8, SINGLE_RANK)
    assert type(head) is Linear
    assert type(embedding) is Embedding
