"""A bigram model: the next token depends on the last one alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import paddle

from fastdeploy_lp import FDConfig
from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
from fastdeploy_lp.model_executor.loader.weights import Weights


class BigramForCausalLM:
    """Logits of the next token are the product of the last token's embedding and a head.

    A checkpoint has `embedding.weight` and `head.weight`, [vocab_size, hidden_size] each.
    """

    def __init__(self, fd_config: FDConfig, weights: Weights) -> None:
        config = fd_config.model_config
        shape = (config.vocab_size, int(config.hf_config["hidden_size"]))
        self._embedding = weights.take("embedding.weight", shape)
        self._head = paddle.to_tensor(weights.take("head.weight", shape))

    def initialize_cache(self, num_blocks: int) -> None:
        """Allocates nothing, since no past tokens are needed."""

    def forward(self, chunks: Sequence[SequenceChunk]) -> paddle.Tensor:
        """Embeddings [rows, hidden_size] of the chunks' output tokens, in the order of the chunks."""
        asked = [chunk.token_ids[len(chunk.token_ids) - chunk.num_outputs :] for chunk in chunks]
        return paddle.to_tensor(self._embedding[np.concatenate(asked)])

    def compute_logits(self, hidden: paddle.Tensor) -> paddle.Tensor:
        """Logits [rows, vocab_size] of embeddings [rows, hidden_size]."""
        return paddle.matmul(hidden, self._head, transpose_y=True)
