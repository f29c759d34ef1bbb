"""Random tiny models and what Hugging Face's own implementation computes with them.

Run as a program, in a process of its own: torch and Paddle bring threads of their own. `python -m support.hf_reference
DIRECTORY` writes every variant of `VARIANTS` and every golden model rounded to bfloat16; with names behind it, those
alone. `tests/data/golden/tiny-phi3` was made with `DIRECTORY tiny-phi3`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
ROUNDED = ("tiny-llama", "tiny-llama3-rope", "tiny-qwen2", "tiny-qwen3", "tiny-ernie45", "tiny-phi3")
PROMPT_LENGTHS = (1, 7, 33, 99)
GREEDY_TOKENS = 24

SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class Variant:
    """A model of the class `{family}ForCausalLM` with these entries of config.json."""

    family: str
    config: dict[str, Any] = field(default_factory=dict)


def _rope(**parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10000.0, **parameters}}


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}

VARIANTS: dict[str, Variant] = {
    "tiny-phi3": Variant("Phi3", {"sliding_window": None, "tie_word_embeddings": False}),
    "llama-biases": Variant("Llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen3-untied-biases": Variant("Qwen3", {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": False}),
    "ernie45-biases": Variant("Ernie4_5", {"head_dim": 16, "use_bias": True, "tie_word_embeddings": False}),
    "mistral-head-dim": Variant("Mistral", {"head_dim": 16, "sliding_window": None}),
    "qwen2-linear": Variant("Qwen2", _rope(rope_type="linear", factor=3.0)),
    "qwen2-yarn": Variant("Qwen2", _rope(**YARN)),
    "llama-yarn-untruncated": Variant("Llama", _rope(**YARN, truncate=False, attention_factor=0.9, beta_fast=8.0)),
}


def main(directory: Path, names: list[str]) -> None:
    """Write the models of these names, all if there are none, each into a folder of its name."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    for name, model in _models(torch, transformers, names):
        folder = directory / name
        reference = _reference(torch, model)
        stored = model.to(torch.bfloat16) if name.endswith("-bf16") else model
        stored.save_pretrained(folder)
        _write(torch, transformers, folder, reference)


def _models(torch: Any, transformers: Any, names: list[str]) -> Iterator[tuple[str, Any]]:
    for name, variant in VARIANTS.items():
        if not names or name in names:
            yield name, _random_model(torch, transformers, variant)
    for name in ROUNDED:
        if not names or f"{name}-bf16" in names:
            model = transformers.AutoModelForCausalLM.from_pretrained(GOLDEN / name, dtype=torch.float32)
            # The weights alone: what the library computes from config.json stays as it is.
            for parameter in model.parameters():
                parameter.data = parameter.data.to(torch.bfloat16).to(torch.float32)
            yield f"{name}-bf16", model.eval()


def _random_model(torch: Any, transformers: Any, variant: Variant) -> Any:
    config = getattr(transformers, f"{variant.family}Config")(**SIZES, **variant.config)
    model = getattr(transformers, f"{variant.family}ForCausalLM")(config).float().eval()
    generator = torch.Generator().manual_seed(len(variant.family))
    # The library's own start has biases of zero and norms of one, which would hide mistakes.
    for name, parameter in model.named_parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            parameter.data = 1.0 + 0.2 * drawn
        else:
            parameter.data = drawn * (0.3 if name.endswith("bias") else 0.12)
    return model


def _reference(torch: Any, model: Any) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(7)
    cases = []
    with torch.no_grad():
        for length in PROMPT_LENGTHS:
            prompt = torch.randint(3, SIZES["vocab_size"], (1, length), generator=generator)
            logits = model(prompt).logits[0]
            tokens, leads, following, past = [], [], prompt, None
            for _ in range(GREEDY_TOKENS):
                step = model(following, past_key_values=past, use_cache=True)
                best = step.logits[0, -1].topk(2)
                tokens.append(int(best.indices[0]))
                leads.append(float(best.values[0] - best.values[1]))
                following, past = best.indices[None, :1], step.past_key_values
            cases.append({"prompt": prompt[0].tolist(), "logits": logits.numpy(), "greedy": tokens, "lead": min(leads)})
    return cases


def _write(torch: Any, transformers: Any, folder: Path, cases: list[dict[str, Any]]) -> None:
    import numpy as np

    reference = {
        "model": folder.name,
        "reference": f"transformers {transformers.__version__}, torch {torch.__version__}, float32",
        "cases": [
            {"prompt_ids": case["prompt"], "greedy_ids": case["greedy"], "min_top1_top2_gap": round(case["lead"], 5)}
            for case in cases
        ],
    }
    (folder / "reference.json").write_text(json.dumps(reference))
    np.savez_compressed(
        folder / "reference_logits.npz", **{f"case{index}": case["logits"] for index, case in enumerate(cases)}
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
