"""The architectures that can be converted: a new one is one entry of ARCHITECTURES."""

from __future__ import annotations

from dataclasses import dataclass

from fastdeploy_lp.checkpoint.gguf_file import GgufFile


@dataclass(frozen=True)
class WeightRule:
    """How one tensor becomes another.

    source, target: its name in the GGUF and in Hugging Face; `{n}` stands for the layer.
    shape: names of sizes, see gguf_weights. rope_heads: for rows stored in the order of interleaved rotary embedding,
    the config.json key of the number of heads they belong to. optional: the GGUF may lack it.
    """

    source: str
    target: str
    shape: tuple[str, ...]
    rope_heads: str | None = None
    optional: bool = False


@dataclass(frozen=True)
class Architecture:
    """One value of `general.architecture`.

    class_name, model_type: as in config.json. model_weights: once a model. layer_weights: once a layer.
    config_tensors: tensors that end up in config.json and not among the weights.
    """

    class_name: str
    model_type: str
    model_weights: tuple[WeightRule, ...]
    layer_weights: tuple[WeightRule, ...]
    config_tensors: frozenset[str] = frozenset()


# Tied embeddings are stored once: a model without this tensor has no lm_head of its own.
LM_HEAD = "output.weight"

# The division of rotary frequencies, element by element, in place of the parameters it came from.
ROPE_FACTORS = "rope_freqs.weight"

_DECODER_MODEL = (
    WeightRule("token_embd.weight", "model.embed_tokens.weight", ("vocab", "hidden")),
    WeightRule("output_norm.weight", "model.norm.weight", ("hidden",)),
    WeightRule(LM_HEAD, "lm_head.weight", ("vocab", "hidden"), optional=True),
)

_DECODER_LAYER = tuple(
    WeightRule(f"blk.{{n}}.{source}.weight", f"model.layers.{{n}}.{target}.weight", shape, rope_heads)
    for source, target, shape, rope_heads in (
        ("attn_norm", "input_layernorm", ("hidden",), None),
        ("attn_q", "self_attn.q_proj", ("queries", "hidden"), "num_attention_heads"),
        ("attn_k", "self_attn.k_proj", ("keys", "hidden"), "num_key_value_heads"),
        ("attn_v", "self_attn.v_proj", ("keys", "hidden"), None),
        ("attn_output", "self_attn.o_proj", ("hidden", "queries"), None),
        ("ffn_norm", "post_attention_layernorm", ("hidden",), None),
        ("ffn_gate", "mlp.gate_proj", ("inner", "hidden"), None),
        ("ffn_up", "mlp.up_proj", ("inner", "hidden"), None),
        ("ffn_down", "mlp.down_proj", ("hidden", "inner"), None),
    )
)

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(
        "LlamaForCausalLM", "llama", _DECODER_MODEL, _DECODER_LAYER, config_tensors=frozenset({ROPE_FACTORS})
    ),
}


def architecture_of(file: GgufFile) -> Architecture:
    """The rules for this file. Raises CheckpointError for an architecture that has none."""
    name = file.required("general.architecture", str)
    if name not in ARCHITECTURES:
        supported = ", ".join(sorted(ARCHITECTURES))
        raise file.error(f"architecture {name!r} cannot be converted", f"give a GGUF of a supported one: {supported}")
    return ARCHITECTURES[name]
