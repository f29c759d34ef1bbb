"""The sizes of a decoder, read from a Hugging Face `config.json`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fastdeploy_lp.checkpoint.config_field import flag, positive_float, positive_int
from fastdeploy_lp.checkpoint.errors import CheckpointError
from fastdeploy_lp.config.tensor_parallel import part_of_heads


@dataclass(frozen=True)
class Dimensions:
    """Sizes that every decoder-only family shares."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    tie_word_embeddings: bool

    @property
    def query_size(self) -> int:
        """Elements of all queries of a token."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Elements of all keys, and of all values, of a token."""
        return self.num_kv_heads * self.head_dim

    def part_of_rank(self, ranks: int) -> Dimensions:
        """Returns the sizes per rank of a model shared by `ranks`; hidden size and vocabulary stay whole."""
        return replace(
            self,
            num_heads=self.num_heads // ranks,
            num_kv_heads=part_of_heads(self.num_kv_heads, ranks),
            intermediate_size=self.intermediate_size // ranks,
        )

    @classmethod
    def from_hf_config(cls, config: dict[str, Any]) -> Dimensions:
        """Raises CheckpointError (a ValueError) naming a field that is missing, no size, or does not fit the others."""
        heads = positive_int(config, "num_attention_heads")
        hidden = positive_int(config, "hidden_size")
        dims = cls(
            num_layers=positive_int(config, "num_hidden_layers"),
            hidden_size=hidden,
            intermediate_size=positive_int(config, "intermediate_size"),
            num_heads=heads,
            num_kv_heads=positive_int(config, "num_key_value_heads", heads),
            head_dim=positive_int(config, "head_dim", hidden // heads),
            vocab_size=positive_int(config, "vocab_size"),
            rms_norm_eps=positive_float(config, "rms_norm_eps", 1e-6),
            tie_word_embeddings=flag(config, "tie_word_embeddings"),
        )
        if dims.num_heads % dims.num_kv_heads:
            raise CheckpointError(
                f"config.json: num_attention_heads {dims.num_heads} is no multiple of num_key_value_heads "
                f"{dims.num_kv_heads}"
            )
        if dims.head_dim % 2:
            raise CheckpointError(f"config.json: head_dim {dims.head_dim} is odd; rotary embedding turns pairs")
        return dims
