"""Golden models as GGUF files, in the order of rows that each architecture has there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, TokenType
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tokenizers.pre_tokenizers import ByteLevel

from support.tiny import GOLDEN

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_proj": "ffn_gate",
    # The merged matrix has this name, too.
    "mlp.gate_up_proj": "ffn_up",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_golden_gguf(path: Path, name: str, *, architecture: str, metadata: dict[str, Any] | None = None) -> Path:
    """A golden model as a GGUF file of float32, with 512 tokens; `metadata` is added, values of None removed."""
    config = json.loads((GOLDEN / name / "config.json").read_text())
    writer = gguf.GGUFWriter(path, architecture)
    values = {**_metadata(config, architecture), **(metadata or {})}
    add = {int: writer.add_uint32, float: writer.add_float32, bool: writer.add_bool, str: writer.add_string}
    for key, value in values.items():
        if value is not None:
            add.get(type(value), writer.add_array)(key, value)
    for tensor, array in load_file(GOLDEN / name / "model.safetensors").items():
        if architecture == "llama" and "self_attn.q_proj" in tensor:
            array = interleaved(array, config["num_attention_heads"])
        if architecture == "llama" and "self_attn.k_proj" in tensor:
            array = interleaved(array, config["num_key_value_heads"])
        writer.add_tensor(gguf_name(tensor), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(tensor: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` → `blk.3.ffn_up.weight`."""
    stem, _, kind = tensor.rpartition(".")
    if not stem.startswith("model.layers."):
        return f"{NAMES[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def interleaved(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows [heads * head_dim, hidden] with the two coordinates of a rotated pair next to each other."""
    halves = rows.reshape(heads, 2, -1, rows.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def random_blocks(
    random: np.random.Generator, shape: tuple[int, ...], quant: GGMLQuantizationType
) -> NDArray[np.uint8]:
    """Blocks of a type that are all bytes at random, as far as these stand for numbers; the last axis is in bytes."""
    block, size = GGML_QUANT_SIZES[quant]
    rows = random.integers(0, 256, (int(np.prod(shape)) // block, size), np.uint8)
    while True:
        with np.errstate(all="ignore"):
            bad = ~np.isfinite(gguf.dequantize(rows, quant).reshape(len(rows), -1)).all(axis=1)
        if not bad.any():
            return rows.reshape(*shape[:-1], shape[-1] // block * size)
        rows[bad] = random.integers(0, 256, (int(bad.sum()), size), np.uint8)


def _metadata(config: dict[str, Any], architecture: str) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    tokens = ["<pad>", "<s>", "</s>", *sorted(ByteLevel.alphabet()), "he"]
    tokens += [f"token{number}" for number in range(config["vocab_size"] - len(tokens))]
    types = [TokenType.CONTROL] * 3 + [TokenType.NORMAL] * (len(tokens) - 3)
    sizes = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config.get("head_dim") or config["hidden_size"] // heads,
        "attention.value_length": config.get("head_dim") or config["hidden_size"] // heads,
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(config["rope_parameters"]["rope_theta"]),
    }
    return {
        **{f"{architecture}.{name}": value for name, value in sizes.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(kind) for kind in types],
        "tokenizer.ggml.merges": ["h e"],
        "tokenizer.ggml.eos_token_id": 2,
    }
