"""Writes a compressed-tensors W8A8 checkpoint of a Llama model for vLLM: int8 weights by channel, activations by token.

SmoothQuant moves the outliers of activations into the weights first: each input channel of a matrix is divided by a
factor, which goes into the weights of the layer before it. The LM head is quantized too, so the embedding is untied.
By hand: ``python benchmarks/peers/w8a8_checkpoint.py MODEL_DIRECTORY NEW_DIRECTORY``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from fastdeploy_lp.entrypoints.bench.serving import PROMPTS

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

ALPHA = 0.7
CALIBRATION_TOKENS = 64
COPIED = ("tokenizer.json", "tokenizer_config.json")
QUANTIZATION: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": [],
    "config_groups": {
        "group_0": {
            "targets": ["Linear", "lm_head"],
            "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "dynamic": False},
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "strategy": "token",
                "symmetric": True,
                "dynamic": True,
            },
        }
    },
}


def input_maxima(
    model: Any, tokenizer: Any, prompts: Sequence[str], answer_tokens: int = CALIBRATION_TOKENS
) -> dict[str, torch.Tensor]:
    """The largest magnitude of each input channel, [in_features], of each linear layer over prompts and answers."""
    maxima: dict[str, torch.Tensor] = {}

    def watch(name: str) -> Any:
        def hook(_: Any, inputs: tuple[torch.Tensor, ...]) -> None:
            seen = inputs[0].abs().flatten(0, -2).amax(0)
            maxima[name] = torch.maximum(maxima[name], seen) if name in maxima else seen

        return hook

    linear = {name: x for name, x in model.named_modules() if isinstance(x, torch.nn.Linear)}
    handles = [layer.register_forward_pre_hook(watch(name)) for name, layer in linear.items()]
    with torch.inference_mode():
        for prompt in prompts:
            messages = [{"role": "user", "content": prompt}]
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            inputs = tokenizer(text, return_tensors="pt", add_special_tokens=False)
            model.generate(**inputs, do_sample=False, max_new_tokens=answer_tokens)
    for handle in handles:
        handle.remove()
    return maxima


def factors(maximum: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """SmoothQuant's factor of each input channel, [in_features]: max|x|^alpha / max|w|^(1 - alpha)."""
    largest = torch.stack([weight.abs().amax(0) for weight in weights]).amax(0)
    return (maximum.clamp(min=1e-5) ** ALPHA / largest.clamp(min=1e-5) ** (1 - ALPHA)).clamp(min=1e-5)


def smooth(model: Any, maxima: dict[str, torch.Tensor]) -> None:
    """Folds the factors of every linear layer into what comes before it; the model computes the same."""
    with torch.no_grad():
        for index, layer in enumerate(model.model.layers):
            name, attention, mlp = f"model.layers.{index}", layer.self_attn, layer.mlp
            after = [attention.q_proj, attention.k_proj, attention.v_proj]
            fold(layer.input_layernorm.weight, after, maxima[f"{name}.self_attn.q_proj"])
            fold(layer.post_attention_layernorm.weight, [mlp.gate_proj, mlp.up_proj], maxima[f"{name}.mlp.gate_proj"])
            fold(mlp.up_proj.weight, [mlp.down_proj], maxima[f"{name}.mlp.down_proj"])
            fold_heads(attention, maxima[f"{name}.self_attn.o_proj"], model.config)
        fold(model.model.norm.weight, [model.lm_head], maxima["lm_head"])


def fold(before: torch.Tensor, after: Sequence[Any], maximum: torch.Tensor) -> None:
    """Divides the rows of `before` by the factors and multiply the input channels of `after` by them."""
    factor = factors(maximum, [layer.weight for layer in after])
    before.div_(factor if before.dim() == 1 else factor[:, None])
    for layer in after:
        layer.weight.mul_(factor)


def fold_heads(attention: Any, maximum: torch.Tensor, config: Any) -> None:
    """Folds the output projection's factors into the values: the query heads of a group share theirs."""
    heads, shared = config.num_attention_heads, config.num_key_value_heads
    factor = factors(maximum, [attention.o_proj.weight]).view(shared, heads // shared, -1).amax(1)
    attention.v_proj.weight.div_(factor.reshape(-1, 1))
    attention.o_proj.weight.mul_(factor[:, None].expand(-1, heads // shared, -1).reshape(-1))


def quantized_tensors(model: Any) -> dict[str, torch.Tensor]:
    """All tensors of the checkpoint; linear layers as int8 [out, in] with a float32 scale [out, 1]."""
    linear = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        module = name.removesuffix(".weight")
        if module not in linear:
            tensors[name] = tensor.contiguous()
            continue
        scale = tensor.abs().amax(1, keepdim=True) / 127
        tensors[name] = (tensor / scale).round().to(torch.int8)
        tensors[f"{module}.weight_scale"] = scale.contiguous()
    return tensors


def convert(source: Path, directory: Path, answer_tokens: int = CALIBRATION_TOKENS) -> None:
    """Writes the W8A8 form of the Llama model in `source`, calibrated on so long answers, to the new `directory`."""
    tokenizer = AutoTokenizer.from_pretrained(source)
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    prompts = [line for line in PROMPTS.splitlines() if line.strip()]
    smooth(model, input_maxima(model, tokenizer, prompts, answer_tokens))
    directory.mkdir(parents=True)
    save_file(quantized_tensors(model), directory / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config |= {"tie_word_embeddings": False, "quantization_config": QUANTIZATION}
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for name in COPIED:
        shutil.copy(source / name, directory / name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a W8A8 checkpoint of a Llama model for vLLM.")
    parser.add_argument("source", type=Path, help="model in Hugging Face layout")
    parser.add_argument("directory", type=Path, help="where to write it; must not exist")
    parser.add_argument("--answer-tokens", type=int, default=CALIBRATION_TOKENS, help="of each calibration prompt")
    options = parser.parse_args()
    convert(options.source, options.directory, options.answer_tokens)
