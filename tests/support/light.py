"""The default model's tokenizer and chat template with a body of few random weights, for what needs no sense."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from fastdeploy_lp.checkpoint import resolve_model

HIDDEN, INNER, HEAD = 16, 32, 8
SIZES = {
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HIDDEN // HEAD,
    "num_key_value_heads": 1,
    "head_dim": HEAD,
    "tie_word_embeddings": False,
}


def write_light_checkpoint(folder: Path, model: str) -> Path:
    """A folder with what this model reads and writes, at a tenth of its time for a token."""
    whole = Path(resolve_model(model, show_progress=False).directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(whole / name, folder / name)
    config = json.loads((whole / "config.json").read_text()) | SIZES
    (folder / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        return random.normal(0, 0.5, shape).astype(np.float32)

    layer = {
        "self_attn.q_proj": weights(HIDDEN, HIDDEN),
        "self_attn.k_proj": weights(HEAD, HIDDEN),
        "self_attn.v_proj": weights(HEAD, HIDDEN),
        "self_attn.o_proj": weights(HIDDEN, HIDDEN),
        "mlp.gate_proj": weights(INNER, HIDDEN),
        "mlp.up_proj": weights(INNER, HIDDEN),
        "mlp.down_proj": weights(HIDDEN, INNER),
        "input_layernorm": np.ones(HIDDEN, np.float32),
        "post_attention_layernorm": np.ones(HIDDEN, np.float32),
    }
    tensors = {
        "model.embed_tokens.weight": weights(config["vocab_size"], HIDDEN),
        **{f"model.layers.0.{name}.weight": values for name, values in layer.items()},
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        "lm_head.weight": weights(config["vocab_size"], HIDDEN),
    }
    save_file(tensors, folder / "model.safetensors")
    return folder
