"""The Llama family (Touvron et al., 2023); SmolLM2 is one of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import paddle
import paddle.nn.functional as F  # noqa: N812 - Paddle's own spelling
from paddle import Tensor

from fastdeploy_lp.config import ModelConfig
from fastdeploy_lp.model_executor.forward_batch import ForwardBatch
from fastdeploy_lp.model_executor.kv_cache import LayerKVCache
from fastdeploy_lp.model_executor.layers.attention import Attention
from fastdeploy_lp.model_executor.layers.embedding import Embedding, LMHead
from fastdeploy_lp.model_executor.layers.linear import Linear, MergedLinear
from fastdeploy_lp.model_executor.layers.norm import RMSNorm
from fastdeploy_lp.model_executor.layers.rotary import RotaryEmbedding
from fastdeploy_lp.model_executor.loader.weights import Weights
from fastdeploy_lp.model_executor.models.dimensions import Dimensions


class LlamaAttention:
    """Projections, rotary embedding and attention of one layer."""

    def __init__(
        self, weights: Weights, name: str, dims: Dimensions, rotary: RotaryEmbedding, cache: LayerKVCache
    ) -> None:
        query_size = dims.num_heads * dims.head_dim
        kv_size = dims.num_kv_heads * dims.head_dim
        # Three products, not one: columns of a merged result would have to be copied out with a stride.
        self.q_proj = Linear(weights, f"{name}.q_proj", dims.hidden_size, query_size)
        self.k_proj = Linear(weights, f"{name}.k_proj", dims.hidden_size, kv_size)
        self.v_proj = Linear(weights, f"{name}.v_proj", dims.hidden_size, kv_size)
        self.o_proj = Linear(weights, f"{name}.o_proj", query_size, dims.hidden_size)
        self.attention = Attention(dims.num_heads, dims.num_kv_heads, dims.head_dim, cache)
        self._rotary = rotary
        self._head_dim = dims.head_dim

    def __call__(self, hidden: Tensor, batch: ForwardBatch, tables: tuple[Tensor, Tensor]) -> Tensor:
        per_head = [hidden.shape[0], -1, self._head_dim]
        queries = self._rotary.rotate(self.q_proj(hidden).reshape(per_head), tables)
        keys = self._rotary.rotate(self.k_proj(hidden).reshape(per_head), tables)
        return self.o_proj(self.attention(queries, keys, self.v_proj(hidden), batch))


class LlamaMLP:
    """SwiGLU feed-forward: down(silu(gate(x)) * up(x))."""

    def __init__(self, weights: Weights, name: str, dims: Dimensions) -> None:
        sizes = [dims.intermediate_size, dims.intermediate_size]
        self.gate_up_proj = MergedLinear(weights, [f"{name}.gate_proj", f"{name}.up_proj"], dims.hidden_size, sizes)
        self.down_proj = Linear(weights, f"{name}.down_proj", dims.intermediate_size, dims.hidden_size)

    def __call__(self, hidden: Tensor) -> Tensor:
        return self.down_proj(F.swiglu(self.gate_up_proj(hidden)))


class LlamaDecoderLayer:
    """Attention and feed-forward, each after a norm and added to the residual stream."""

    def __init__(
        self, weights: Weights, name: str, dims: Dimensions, rotary: RotaryEmbedding, cache: LayerKVCache
    ) -> None:
        self.input_layernorm = RMSNorm(weights, f"{name}.input_layernorm", dims.hidden_size, dims.rms_norm_eps)
        self.self_attn = LlamaAttention(weights, f"{name}.self_attn", dims, rotary, cache)
        self.post_attention_layernorm = RMSNorm(
            weights, f"{name}.post_attention_layernorm", dims.hidden_size, dims.rms_norm_eps
        )
        self.mlp = LlamaMLP(weights, f"{name}.mlp", dims)

    def __call__(
        self, hidden: Tensor, residual: Tensor | None, batch: ForwardBatch, tables: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        hidden, residual = self.input_layernorm(hidden, residual)
        hidden = self.self_attn(hidden, batch, tables)
        hidden, residual = self.post_attention_layernorm(hidden, residual)
        return self.mlp(hidden), residual


class LlamaForCausalLM:
    """A Llama decoder with its language-model head."""

    def __init__(self, config: ModelConfig, weights: Weights, caches: Sequence[LayerKVCache]) -> None:
        dims = Dimensions.from_hf_config(config.hf_config)
        _require_swiglu(config.hf_config)
        rotary = RotaryEmbedding(config.hf_config, dims.head_dim, config.max_model_len)
        self._rotary = rotary
        self.embed_tokens = Embedding(weights, "model.embed_tokens", config.vocab_size, dims.hidden_size)
        self.layers = [
            LlamaDecoderLayer(weights, f"model.layers.{index}", dims, rotary, cache)
            for index, cache in enumerate(caches)
        ]
        self.norm = RMSNorm(weights, "model.norm", dims.hidden_size, dims.rms_norm_eps)
        self.lm_head = LMHead(weights, "lm_head", self.embed_tokens, tied=dims.tie_word_embeddings)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """The final hidden states of every chunk's last token: [sequences, hidden_size]."""
        tables = self._rotary.tables(batch.positions)
        hidden, residual = self.embed_tokens(batch.token_ids), None
        for layer in self.layers:
            hidden, residual = layer(hidden, residual, batch, tables)
        # Only these rows are asked for next tokens; the rest of a prompt needs no final norm.
        rows = [paddle.gather(x, batch.last_rows) for x in (hidden, residual)]
        return self.norm(*rows)[0]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits [sequences, vocab_size] of hidden states [sequences, hidden_size]."""
        return self.lm_head(hidden)


def _require_swiglu(hf_config: dict[str, Any]) -> None:
    activation = hf_config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ValueError(f"config.json: hidden_act {activation!r} is not supported; Llama models here have silu")
