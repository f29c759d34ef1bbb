"""Token embedding and the language-model head."""

from __future__ import annotations

import paddle
from paddle import Tensor

from fastdeploy_lp.model_executor.loader.weights import Weights


class Embedding:
    """token ids [tokens] → hidden [tokens, hidden_size]."""

    def __init__(self, weights: Weights, name: str, vocab_size: int, hidden_size: int) -> None:
        self.weight = weights.take(f"{name}.weight", (vocab_size, hidden_size))

    def __call__(self, token_ids: Tensor) -> Tensor:
        return paddle.gather(self.weight, token_ids)


class LMHead:
    """hidden [rows, hidden_size] → logits [rows, vocab_size].

    A tied head is the embedding; some checkpoints hold it a second time under its own name.
    """

    def __init__(self, weights: Weights, name: str, embedding: Embedding, *, tied: bool) -> None:
        tensor = f"{name}.weight"
        own = tensor in weights or not tied
        shape = embedding.weight.shape
        self.weight = weights.take(tensor, shape, transpose=True) if own else embedding.weight.T.contiguous()

    def __call__(self, hidden: Tensor) -> Tensor:
        return paddle.matmul(hidden, self.weight)
