"""The sizes of a decoder, read from a Hugging Face `config.json`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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

    @classmethod
    def from_hf_config(cls, config: dict[str, Any]) -> Dimensions:
        """Raises ValueError naming the field that `config.json` lacks, or whose value does not fit the others."""
        try:
            heads = int(config["num_attention_heads"])
            dims = cls(
                num_layers=int(config["num_hidden_layers"]),
                hidden_size=int(config["hidden_size"]),
                intermediate_size=int(config["intermediate_size"]),
                num_heads=heads,
                num_kv_heads=int(config.get("num_key_value_heads") or heads),
                head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
                vocab_size=int(config["vocab_size"]),
                rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
                tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            )
        except KeyError as error:
            raise ValueError(f"config.json: {error.args[0]} is missing") from None
        if dims.num_heads % dims.num_kv_heads:
            raise ValueError(
                f"config.json: num_attention_heads {dims.num_heads} is no multiple of num_key_value_heads "
                f"{dims.num_kv_heads}"
            )
        if dims.head_dim % 2:
            raise ValueError(f"config.json: head_dim {dims.head_dim} is odd; rotary embedding turns pairs")
        return dims
