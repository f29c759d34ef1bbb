"""Random Llamas of any size as GGUF files, with the default model's tokenizer."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from math import prod
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from fastdeploy_lp.checkpoint.gguf_file import GgufFile
from fastdeploy_lp.checkpoint.gguf_reader import read_gguf
from fastdeploy_lp.checkpoint.resolve import NAMED_MODELS, packaged_gguf
from fastdeploy_lp.model_executor.loader.weights import open_weights

# Kinds of files: the type of most matrices, and the type of the embedding and of every other layer's value and down
# projections, of which a Q4_K_M file has more bits.
KINDS = {
    "Q4_K_M": (GGMLQuantizationType.Q4_K, GGMLQuantizationType.Q6_K),
    "Q5_K_M": (GGMLQuantizationType.Q5_K, GGMLQuantizationType.Q6_K),
    "Q8_0": (GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q8_0),
    "Q4_1": (GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q4_1),
    "F16": (GGMLQuantizationType.F16, GGMLQuantizationType.F16),
    "BF16": (GGMLQuantizationType.BF16, GGMLQuantizationType.BF16),
}
# Types that the library cannot quantize to: where their blocks have half floats, and how large those are.
HALVES = {
    GGMLQuantizationType.Q4_K: {0: 2e-4, 2: 1e-3},
    GGMLQuantizationType.Q5_K: {0: 1e-4, 2: 1e-3},
    GGMLQuantizationType.Q6_K: {208: 2e-5},
}
DEVIATION = 0.02
DISTINCT_BLOCKS = 1 << 14


@dataclass(frozen=True)
class Sizes:
    """Sizes of a Llama, by default one of 1.07 billion parameters."""

    hidden: int = 2048
    inner: int = 5632
    layers: int = 22
    heads: int = 32
    kv_heads: int = 4

    def matrices(self, layer: int) -> dict[str, tuple[int, int]]:
        """The matrices of a layer by their names in GGUF files."""
        keys = self.hidden // self.heads * self.kv_heads
        shapes = {
            "attn_q": (self.hidden, self.hidden),
            "attn_k": (keys, self.hidden),
            "attn_v": (keys, self.hidden),
            "attn_output": (self.hidden, self.hidden),
            "ffn_gate": (self.inner, self.hidden),
            "ffn_up": (self.inner, self.hidden),
            "ffn_down": (self.hidden, self.inner),
        }
        return {f"blk.{layer}.{name}.weight": shape for name, shape in shapes.items()}


def write_gguf(path: Path, sizes: Sizes, kind: str) -> None:
    """Writes a model of a kind of `KINDS` with random weights; its head is the embedding."""
    source = read_gguf(packaged_gguf(NAMED_MODELS["smollm2-135m"]))
    random = np.random.default_rng(0)
    usual, better = KINDS[kind]
    writer = gguf.GGUFWriter(path, "llama")
    _add_metadata(writer, source, sizes)

    def add(name: str, shape: tuple[int, int], quant: GGMLQuantizationType) -> None:
        writer.add_tensor(name, random_blocks(random, shape, quant), raw_dtype=quant)

    add("token_embd.weight", (len(source.texts("tokenizer.ggml.tokens")), sizes.hidden), better)
    writer.add_tensor("output_norm.weight", np.ones(sizes.hidden, np.float32))
    for layer in range(sizes.layers):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(sizes.hidden, np.float32))
        for name, shape in sizes.matrices(layer).items():
            more_bits = layer % 2 == 0 and ("attn_v" in name or "ffn_down" in name)
            add(name, shape, better if more_bits else usual)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_bfloat16(converted: Path, directory: Path) -> None:
    """Writes a copy of a Hugging Face directory with its weights rounded to bfloat16."""
    directory.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(converted / name, directory / name)
    header: dict[str, object] = {}
    end = 0
    with (
        open_weights([converted / "model.safetensors"]) as weights,
        (directory / "model.safetensors").open("wb") as stream,
    ):
        shapes = weights.shapes()
        for name, shape in shapes.items():
            begin, end = end, end + 2 * prod(shape)
            header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        stream.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            stream.write(weights.take(name, shape).astype(ml_dtypes.bfloat16).tobytes())


def random_blocks(
    random: np.random.Generator, shape: tuple[int, int], quant: GGMLQuantizationType
) -> NDArray[np.uint8]:
    """Blocks of weights as large as a model's; the last axis is in bytes."""
    block, size = GGML_QUANT_SIZES[quant]
    count = shape[0] * shape[1] // block
    if quant in HALVES:
        rows = np.frombuffer(random.bytes(count * size), np.uint8).reshape(count, size).copy()
        for at, scale in HALVES[quant].items():
            halves = ((0.5 + random.random(count, np.float32)) * np.float32(scale)).astype("<f2")
            rows[:, at : at + 2] = halves.view(np.uint8).reshape(count, 2)
    else:
        # The lossless formats need blocks that the library quantized; a few are repeated, since quantizing is slow.
        weights = random.standard_normal((min(count, DISTINCT_BLOCKS), block), np.float32) * np.float32(DEVIATION)
        distinct = gguf.quantize(weights, quant).reshape(len(weights), size)
        rows = distinct[random.integers(0, len(distinct), count)]
    return rows.reshape(shape[0], -1)


def _add_metadata(writer: gguf.GGUFWriter, source: GgufFile, sizes: Sizes) -> None:
    own = {
        "llama.block_count": sizes.layers,
        "llama.context_length": 2048,
        "llama.embedding_length": sizes.hidden,
        "llama.feed_forward_length": sizes.inner,
        "llama.attention.head_count": sizes.heads,
        "llama.attention.head_count_kv": sizes.kv_heads,
        "llama.rope.dimension_count": sizes.hidden // sizes.heads,
        "llama.attention.key_length": sizes.hidden // sizes.heads,
        "llama.attention.value_length": sizes.hidden // sizes.heads,
    }
    add = {int: writer.add_uint32, float: writer.add_float32, bool: writer.add_bool, str: writer.add_string}
    kept = {key: value for key, value in source.metadata.items() if not key.startswith("general.")}
    for key, value in {**kept, **own}.items():
        add.get(type(value), writer.add_array)(key, value)
