"""The interface of an attention backend: storage of keys and values, and attention over them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from paddle import Tensor

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.model_executor.block_copier import BlockCopier
from fastdeploy_lp.model_executor.decoder_weights import LayerWeights
from fastdeploy_lp.model_executor.dimensions import Dimensions
from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
from fastdeploy_lp.model_executor.layers.rotary import RotaryTables


class AttentionBatch(Protocol):
    """Input of a pass: packed tokens, and the backend's own data about them."""

    @property
    def token_ids(self) -> Tensor:
        """Integers [tokens], in the order in which the backend packs the chunks."""

    @property
    def output_rows(self) -> Tensor:
        """Integers [rows]: the packed tokens that the chunks ask for, in the order of the chunks."""


class DecodeBatch(AttentionBatch, Protocol):
    """A decode pass in tensors at fixed addresses."""

    def fill(self, chunks: Sequence[SequenceChunk]) -> None:
        """Sets the pass to at most `size` chunks of one token each after position 0, packed in this order.

        The other rows compute meaningless results, and change nothing.
        """


class AttentionLayer(Protocol):
    """One decoder layer's attention with the layer's part of the KV cache."""

    def __call__(self, hidden: Tensor, batch: Any) -> Tensor:
        """Maps normed hidden states [tokens, hidden_size] to attended values [tokens, heads * head_dim].

        Projects queries, keys and values, writes the batch's keys and values to the cache, and lets every token look
        at itself and its own past. `batch` is the result of this backend's `prepare`.
        """


class AttentionBackend(ABC):
    """Attention of a whole model, with a KV cache that `initialize_cache` allocates when all layers exist.

    Built as `cls(fd_config, dims, rotary)`; `Platform.get_attention_backend` names the class. A token's result depends
    on its own sequence alone.
    """

    @abstractmethod
    def __init__(self, fd_config: FDConfig, dims: Dimensions, rotary: RotaryTables) -> None: ...

    @abstractmethod
    def prepare(self, chunks: Sequence[SequenceChunk]) -> AttentionBatch:
        """Lays chunks out for one pass; once for all layers."""

    @abstractmethod
    def layer(self, weights: LayerWeights) -> AttentionLayer:
        """Returns the next layer's attention, with its own part of the cache.

        Takes `q_proj`, `k_proj` and `v_proj` and, where the family has them, `q_norm` and `k_norm`.
        """

    def decode_batch(self, size: int) -> DecodeBatch | None:  # noqa: ARG002
        """Returns a pass of `size` rows that can be repeated in place; None if each pass needs a new layout."""
        return None

    @abstractmethod
    def initialize_cache(self, num_blocks: int) -> None:
        """Allocates every layer's cache: `num_blocks` blocks with the null block 0; replaces an existing cache."""

    def block_copier(self) -> BlockCopier | None:
        """Returns the function that copies a block in every layer's cache; None by default.

        With it, sequences share prefixes to the token; without it, in whole blocks.
        """
        return None
