"""Reads the parts of a decoder under the names in most families' checkpoints."""

from __future__ import annotations

from fastdeploy_lp.model_executor.decoder_weights import DecoderWeights, LayerWeights, LinearWeights
from fastdeploy_lp.model_executor.dimensions import Dimensions
from fastdeploy_lp.model_executor.loader.split import COLUMNS, ROWS, WHOLE, Section, Split
from fastdeploy_lp.model_executor.loader.weights import Weights


class DecoderReader:
    """Which optional parts there are, the family or its `config.json` says: a bias too many or too few is an error.

    qkv_bias, o_bias, mlp_bias: query, key and value, output, and feed-forward projections have biases. qk_norm: queries
    and keys are normalized head by head. A family with other tensors overrides the method that reads them.
    """

    def __init__(
        self,
        weights: Weights,
        dims: Dimensions,
        *,
        qkv_bias: bool = False,
        o_bias: bool = False,
        mlp_bias: bool = False,
        qk_norm: bool = False,
    ) -> None:
        self.weights = weights
        self.dims = dims
        self._qkv_bias = qkv_bias
        self._o_bias = o_bias
        self._mlp_bias = mlp_bias
        self._qk_norm = qk_norm

    def decoder(self) -> DecoderWeights:
        """The whole decoder; layers are read as they are iterated over. Raises WeightsError naming a tensor."""
        dims = self.dims
        embedding = self.weights.matrix("model.embed_tokens.weight", (dims.vocab_size, dims.hidden_size), ROWS)
        # Some checkpoints with a tied head hold it a second time under its own name.
        own_head = not dims.tie_word_embeddings or "lm_head.weight" in self.weights
        return DecoderWeights(
            embedding=embedding,
            layers=(self.layer(f"model.layers.{index}") for index in range(dims.num_layers)),
            norm=self.weights.take("model.norm.weight", (dims.hidden_size,)),
            lm_head=self.linear("lm_head", dims.vocab_size, dims.hidden_size, split=ROWS) if own_head else None,
        )

    def layer(self, name: str) -> LayerWeights:
        """One layer, in the order in which it is computed."""
        dims, attention = self.dims, f"{name}.self_attn"
        hidden, inner = dims.hidden_size, dims.intermediate_size
        q_proj, k_proj, v_proj = self.qkv(attention)
        gate_proj, up_proj = self.gate_up(f"{name}.mlp")
        return LayerWeights(
            input_norm=self.weights.take(f"{name}.input_layernorm.weight", (hidden,)),
            q_proj=q_proj,
            k_proj=k_proj,
            v_proj=v_proj,
            o_proj=self.linear(f"{attention}.o_proj", hidden, dims.query_size, bias=self._o_bias, split=COLUMNS),
            post_attention_norm=self.weights.take(f"{name}.post_attention_layernorm.weight", (hidden,)),
            gate_proj=gate_proj,
            up_proj=up_proj,
            down_proj=self.linear(f"{name}.mlp.down_proj", hidden, inner, bias=self._mlp_bias, split=COLUMNS),
            q_norm=self.weights.take(f"{attention}.q_norm.weight", (dims.head_dim,)) if self._qk_norm else None,
            k_norm=self.weights.take(f"{attention}.k_norm.weight", (dims.head_dim,)) if self._qk_norm else None,
        )

    def qkv(self, name: str) -> tuple[LinearWeights, LinearWeights, LinearWeights]:
        """Query, key and value projection of the attention of this name."""
        dims, bias, kv_heads = self.dims, self._qkv_bias, self.kv_split
        return (
            self.linear(f"{name}.q_proj", dims.query_size, dims.hidden_size, bias=bias, split=ROWS),
            self.linear(f"{name}.k_proj", dims.kv_size, dims.hidden_size, bias=bias, split=kv_heads),
            self.linear(f"{name}.v_proj", dims.kv_size, dims.hidden_size, bias=bias, split=kv_heads),
        )

    @property
    def kv_split(self) -> Split:
        """Division of keys and values among ranks: by whole heads."""
        return Split(0, (Section(self.dims.kv_size, self.dims.num_kv_heads),))

    def gate_up(self, name: str) -> tuple[LinearWeights, LinearWeights]:
        """The two projections whose outputs are multiplied, of the feed-forward part of this name."""
        inner, hidden, bias = self.dims.intermediate_size, self.dims.hidden_size, self._mlp_bias
        return (
            self.linear(f"{name}.gate_proj", inner, hidden, bias=bias, split=ROWS),
            self.linear(f"{name}.up_proj", inner, hidden, bias=bias, split=ROWS),
        )

    def linear(
        self, name: str, out_features: int, in_features: int, *, bias: bool = False, split: Split = WHOLE
    ) -> LinearWeights:
        """The matrix [out_features, in_features] of this name, with its bias [out_features] if it has one.

        Of a model that ranks share, this rank's part; where that is of the inputs (`COLUMNS`), the first rank alone has
        the bias, since the ranks' products are added.
        """
        weight = self.weights.matrix(f"{name}.weight", (out_features, in_features), split)
        if not bias:
            return LinearWeights(weight)
        found = self.weights.take(f"{name}.bias", (out_features,), WHOLE if split is COLUMNS else split)
        return LinearWeights(weight, None if split is COLUMNS and self.weights.communicator.rank else found)
