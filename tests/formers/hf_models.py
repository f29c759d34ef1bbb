"""Random tiny models of families that PaddleFormers computes, with the logits of Hugging Face's implementation.

Run as a program, by an interpreter without PaddleFormers, which brings a release of transformers that does not import
torch: `python hf_models.py DIRECTORY NAME…`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PROMPT_LENGTHS = (1, 7, 33, 99)
SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
EXPERTS = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
MLA = {
    "head_dim": 8,
    "num_key_value_heads": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
MSCALE = {"mscale": 1.0, "mscale_all_dim": 1.0}
WINDOWS = {"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3-moe": ("Qwen3Moe", {**EXPERTS, "num_experts": 6, "norm_topk_prob": True}),
    "glm4-moe": (
        "Glm4Moe",
        {**EXPERTS, "n_routed_experts": 6, "n_shared_experts": 1, "first_k_dense_replace": 1, "use_qk_norm": True},
    ),
    "gpt-oss": (
        "GptOss",
        {
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "rope_parameters": {**YARN, "truncate": False},
            **WINDOWS,
        },
    ),
    "deepseek-v3": (
        "DeepseekV3",
        {
            **EXPERTS,
            **MLA,
            "rope_parameters": YARN | MSCALE,
            "n_routed_experts": 8,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
    ),
    "qwen2-moe": ("Qwen2Moe", {**EXPERTS, "num_experts": 6, "shared_expert_intermediate_size": 48}),
    "ernie45-moe": ("Ernie4_5_Moe", {"moe_intermediate_size": 32, "moe_k": 2, "moe_num_experts": 6}),
    "qwen3-next": (
        "Qwen3Next",
        {**EXPERTS, "num_experts": 6, "shared_expert_intermediate_size": 48, "num_hidden_layers": 4},
    ),
    "gemma3": ("Gemma3", {**WINDOWS, "query_pre_attn_scalar": 24, "tie_word_embeddings": True}),
    "phi3": ("Phi3", {"sliding_window": 20, "head_dim": 8}),
}


def main(directory: Path, names: list[str]) -> None:
    """Writes the models of these names, all if there are none, each into a folder of its name."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    for name in names or FAMILIES:
        family, more = FAMILIES[name]
        config_class = getattr(transformers, f"{family}Config" if family != "Gemma3" else "Gemma3TextConfig")
        model = getattr(transformers, f"{family}ForCausalLM")(config_class(**{**SIZES, **more})).float().eval()
        randomize(torch, model, seed=len(name))
        model.save_pretrained(directory / name)
        save_reference(torch, model, directory / name)


def randomize(torch: Any, model: Any, seed: int) -> None:
    """Draws all weights; the library's own start has biases of zero and norms of one, which would hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in [*model.named_parameters(), *model.named_buffers()]:
        if "rotary" in name or "embed_scale" in name:
            continue
        drawn = torch.randn(parameter.shape, generator=generator)
        centre = 1.0 if "norm" in name and "Gemma" not in type(model).__name__ else 0.0
        parameter.data = centre + drawn * (0.3 if name.endswith(("bias", "sinks")) else 0.12)


def save_reference(torch: Any, model: Any, folder: Path) -> None:
    """Writes prompts and their logits."""
    import numpy as np

    generator = torch.Generator().manual_seed(7)
    prompts = [torch.randint(3, SIZES["vocab_size"], (1, length), generator=generator) for length in PROMPT_LENGTHS]
    with torch.no_grad():
        logits = [model(prompt).logits[0].numpy() for prompt in prompts]
    (folder / "prompts.json").write_text(json.dumps([prompt[0].tolist() for prompt in prompts]))
    np.savez(folder / "hf_logits.npz", *logits)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
