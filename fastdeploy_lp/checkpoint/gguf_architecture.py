"""The architectures that can be converted; a new one needs one entry in ARCHITECTURES."""

from __future__ import annotations

from dataclasses import dataclass

from fastdeploy_lp.checkpoint.gguf_file import GgufFile


@dataclass(frozen=True)
class WeightRule:
    """Conversion rule of one tensor.

    source, target: its name in the GGUF and in Hugging Face; `{n}` is the layer number.
    shape: names of sizes, see gguf_weights. rope_heads: for rows stored in the order of interleaved rotary embedding,
    the config.json key of their number of heads. optional: the GGUF may lack it.
    """

    source: str
    target: str
    shape: tuple[str, ...]
    rope_heads: str | None = None
    optional: bool = False


@dataclass(frozen=True)
class Architecture:
    """One value of `general.architecture`.

    class_name, model_type: as in config.json. model_weights: once per model. layer_weights: once per layer.
    config_tensors: tensors that are converted to config.json fields, not to weights.
    """

    class_name: str
    model_type: str
    model_weights: tuple[WeightRule, ...]
    layer_weights: tuple[WeightRule, ...]
    config_tensors: frozenset[str] = frozenset()


# Tied embeddings are stored once: a model without this tensor has no separate lm_head.
LM_HEAD = "output.weight"

# Divisors of the rotary frequencies, one per frequency, stored instead of the scaling parameters.
ROPE_FACTORS = "rope_freqs.weight"

_DECODER_MODEL = (
    WeightRule("token_embd.weight", "model.embed_tokens.weight", ("vocab", "hidden")),
    WeightRule("output_norm.weight", "model.norm.weight", ("hidden",)),
    WeightRule(LM_HEAD, "lm_head.weight", ("vocab", "hidden"), optional=True),
)


def _layer_weights(*, interleaved: bool = False, more: tuple[WeightRule, ...] = ()) -> tuple[WeightRule, ...]:
    """Returns the matrices and norms of every decoder; `interleaved`: query and key rows are in rotated pairs."""
    query_heads, key_heads = ("num_attention_heads", "num_key_value_heads") if interleaved else (None, None)
    return (
        _rule("attn_norm.weight", "input_layernorm.weight", "hidden"),
        _rule("attn_q.weight", "self_attn.q_proj.weight", "queries", "hidden", rope_heads=query_heads),
        _rule("attn_k.weight", "self_attn.k_proj.weight", "keys", "hidden", rope_heads=key_heads),
        _rule("attn_v.weight", "self_attn.v_proj.weight", "keys", "hidden"),
        _rule("attn_output.weight", "self_attn.o_proj.weight", "hidden", "queries"),
        _rule("ffn_norm.weight", "post_attention_layernorm.weight", "hidden"),
        _rule("ffn_gate.weight", "mlp.gate_proj.weight", "inner", "hidden"),
        _rule("ffn_up.weight", "mlp.up_proj.weight", "inner", "hidden"),
        _rule("ffn_down.weight", "mlp.down_proj.weight", "hidden", "inner"),
        *more,
    )


def _rule(source: str, target: str, *shape: str, rope_heads: str | None = None) -> WeightRule:
    return WeightRule(f"blk.{{n}}.{source}", f"model.layers.{{n}}.{target}", shape, rope_heads)


_QKV_BIASES = (
    _rule("attn_q.bias", "self_attn.q_proj.bias", "queries"),
    _rule("attn_k.bias", "self_attn.k_proj.bias", "keys"),
    _rule("attn_v.bias", "self_attn.v_proj.bias", "keys"),
)

_QK_NORMS = (
    _rule("attn_q_norm.weight", "self_attn.q_norm.weight", "head"),
    _rule("attn_k_norm.weight", "self_attn.k_norm.weight", "head"),
)

# Phi-3's layers: one matrix for queries, keys and values, one for both halves of the feed-forward part.
_MERGED_LAYER = (
    _rule("attn_norm.weight", "input_layernorm.weight", "hidden"),
    _rule("attn_qkv.weight", "self_attn.qkv_proj.weight", "queries_keys_values", "hidden"),
    _rule("attn_output.weight", "self_attn.o_proj.weight", "hidden", "queries"),
    _rule("ffn_norm.weight", "post_attention_layernorm.weight", "hidden"),
    _rule("ffn_up.weight", "mlp.gate_up_proj.weight", "both_inner", "hidden"),
    _rule("ffn_down.weight", "mlp.down_proj.weight", "hidden", "inner"),
)

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(
        "LlamaForCausalLM",
        "llama",
        _DECODER_MODEL,
        _layer_weights(interleaved=True),
        config_tensors=frozenset({ROPE_FACTORS}),
    ),
    # Its own reader undoes the rotation of neighbours, which Hugging Face's files have as well.
    "ernie4_5": Architecture("Ernie4_5ForCausalLM", "ernie4_5", _DECODER_MODEL, _layer_weights()),
    "phi3": Architecture("Phi3ForCausalLM", "phi3", _DECODER_MODEL, _MERGED_LAYER),
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2", _DECODER_MODEL, _layer_weights(more=_QKV_BIASES)),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3", _DECODER_MODEL, _layer_weights(more=_QK_NORMS)),
}


def architecture_of(file: GgufFile) -> Architecture:
    """Returns the rules for this file. Raises CheckpointError for an unsupported architecture."""
    name = file.required("general.architecture", str)
    if name not in ARCHITECTURES:
        supported = ", ".join(sorted(ARCHITECTURES))
        raise file.error(f"architecture {name!r} cannot be converted", f"give a GGUF of a supported one: {supported}")
    return ARCHITECTURES[name]
