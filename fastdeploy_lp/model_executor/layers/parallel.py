"""Layers of which every rank holds a part (Shoeybi et al., 2019). A model that is not shared gets the plain layers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import paddle
import paddle.nn.functional as F  # noqa: N812 - Paddle's own spelling
from paddle import Tensor

from fastdeploy_lp.model_executor.decoder_weights import FloatArray, LinearWeights, Matrix, floats
from fastdeploy_lp.model_executor.layers.linear import LinearLayer, linear
from fastdeploy_lp.model_executor.layers.quantization import rounded_weight
from fastdeploy_lp.model_executor.loader.split import Section, part_size
from fastdeploy_lp.model_executor.parallel.communicator import Communicator
from fastdeploy_lp.platforms import current_platform


class Embedding:
    """token_ids [tokens] → [tokens, hidden_size]; the weight [vocab_size, hidden_size] is rounded where products are.

    If only matrix products have 8-bit weights, the embedding is not rounded.
    """

    def __init__(self, weight: FloatArray, precision: str | None) -> None:
        platform = current_platform()
        rounded = weight if platform.weight_only_int8 else rounded_weight(weight, precision)
        self._weight = paddle.to_tensor(rounded, dtype=platform.model_dtype)

    def __call__(self, token_ids: Tensor) -> Tensor:
        return paddle.gather(self._weight, token_ids)


EmbeddingLayer = Callable[[Tensor], Tensor]


def row_parallel(weights: LinearWeights, precision: str | None, communicator: Communicator) -> LinearLayer:
    """A product whose inputs are divided among the ranks: their results are added."""
    part = linear(weights, precision)
    return part if communicator.size == 1 else _RowParallel(part, communicator)


def vocab_embedding(
    weight: Matrix, precision: str | None, vocab_size: int, communicator: Communicator
) -> EmbeddingLayer:
    """The embedding of tokens that are divided among the ranks; `weight` [tokens of this rank, hidden_size]."""
    # A rank that has none of a small vocabulary looks its zeros up as well.
    held = floats(weight) if len(weight) else np.zeros((1, weight.shape[1]), np.float32)
    part = Embedding(held, precision)
    return part if communicator.size == 1 else _VocabEmbedding(part, vocab_size, communicator)


def vocab_head(
    weights: LinearWeights, precision: str | None, vocab_size: int, communicator: Communicator
) -> LinearLayer:
    """The language-model head of tokens that are divided among the ranks; rank 0 alone has the whole logits."""
    part = linear(weights, precision)
    return part if communicator.size == 1 else _VocabHead(part, vocab_size, communicator)


class _RowParallel:
    def __init__(self, part: LinearLayer, communicator: Communicator) -> None:
        self._part = part
        self._communicator = communicator

    def __call__(self, x: Tensor) -> Tensor:
        return self._communicator.all_reduce(self._part(x))


class _VocabEmbedding:
    def __init__(self, part: Embedding, vocab_size: int, communicator: Communicator) -> None:
        self._part = part
        self._communicator = communicator
        self._tokens = Section(vocab_size).part(communicator.rank, communicator.size)

    def __call__(self, token_ids: Tensor) -> Tensor:
        held = (token_ids >= self._tokens.start).logical_and(token_ids < self._tokens.stop)
        # A token of another rank looks up one that is there, and counts as zeros.
        rows = self._part(paddle.where(held, token_ids - self._tokens.start, paddle.zeros_like(token_ids)))
        return self._communicator.all_reduce(rows * held.astype(rows.dtype).unsqueeze(1))


class _VocabHead:
    def __init__(self, part: LinearLayer, vocab_size: int, communicator: Communicator) -> None:
        self._part = part
        self._communicator = communicator
        self._each = part_size(vocab_size, communicator.size)
        held = [Section(vocab_size).part(rank, communicator.size) for rank in range(communicator.size)]
        self._widths = [tokens.stop - tokens.start for tokens in held]

    def __call__(self, x: Tensor) -> Tensor:
        """Logits [rows, vocab_size] on rank 0, [rows, tokens of this rank] on the others."""
        logits = self._part(x)
        missing = self._each - self._widths[self._communicator.rank]
        # All ranks send equally much.
        sent = F.pad(logits, [0, 0, 0, missing]) if missing else logits
        parts = self._communicator.gather(sent)
        if not parts:
            return logits
        cut = [
            part if width == self._each else part[:, :width] for part, width in zip(parts, self._widths, strict=True)
        ]
        return paddle.concat(cut, axis=1)
