"""Layers of which every rank holds a part (Shoeybi et al., 2019). A model that is not shared gets the plain layers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import paddle
import paddle.nn.functional as F  # noqa: N812 - Paddle's own spelling
from paddle import Tensor

from fastdeploy_lp.model_executor.decoder_weights import FloatArray, LinearWeights, Matrix, floats
from fastdeploy_lp.model_executor.layers.linear import LinearLayer, linear
from fastdeploy_lp.model_executor.layers.quantization import ACTIVATION_DIGITS, rounded_activations, rounded_weight
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
        self.weight = paddle.to_tensor(rounded, dtype=platform.model_dtype)

    def __call__(self, token_ids: Tensor) -> Tensor:
        return paddle.gather(self.weight, token_ids)


class TiedHead:
    """x [tokens, hidden_size] → [tokens, vocab_size]: the product with an embedding, in the embedding's own memory."""

    def __init__(self, embedding: Embedding, precision: str | None) -> None:
        self.weight = embedding.weight
        self._precision = precision

    def __call__(self, x: Tensor) -> Tensor:
        return paddle.matmul(rounded_activations(x, self._precision), self.weight, transpose_y=True)


EmbeddingLayer = Callable[[Tensor], Tensor]


def row_parallel(weights: LinearWeights, precision: str | None, communicator: Communicator) -> LinearLayer:
    """A product whose inputs are divided among the ranks: their results are added."""
    part = linear(weights, precision)
    return part if communicator.size == 1 else _RowParallel(part, communicator)


def vocab_layers(
    embedding: Matrix, lm_head: LinearWeights | None, precision: str | None, vocab_size: int, communicator: Communicator
) -> tuple[EmbeddingLayer, LinearLayer]:
    """The embedding and the language-model head of tokens that are divided among the ranks.

    embedding: [tokens of this rank, hidden_size]. lm_head: None for a head with the embedding's weight. Rank 0 alone
    has the whole logits.
    """
    # A rank that has none of a small vocabulary looks its zeros up as well.
    held = floats(embedding) if len(embedding) else np.zeros((1, embedding.shape[1]), np.float32)
    part = Embedding(held, precision)
    if lm_head is None and len(embedding) and _shares_weights(precision):
        head: LinearLayer = TiedHead(part, precision)
    else:
        head = linear(lm_head or LinearWeights(embedding), precision)
    if communicator.size == 1:
        return part, head
    return _VocabEmbedding(part, vocab_size, communicator), _VocabHead(head, vocab_size, communicator)


def _shares_weights(precision: str | None) -> bool:
    """Returns True if one tensor serves look-ups and products; on the CPU products are faster with their own layout."""
    platform = current_platform()
    return not (platform.computes_on_host or (ACTIVATION_DIGITS[precision] and platform.weight_only_int8))


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
