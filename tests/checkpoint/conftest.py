"""A tiny Llama as a GGUF file, and the real SmolLM2 converted once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType, TokenType
from tokenizers.pre_tokenizers import ByteLevel

from fastdeploy_lp.checkpoint import ModelFiles, resolve_model

HIDDEN, INNER, HEADS, KV_HEADS, LAYERS = 64, 96, 4, 2, 2
CONTROL_TOKENS = ["<|bos|>", "<|eos|>", "<|eot|>"]
MERGES = ["1 2", "12 3", "123 4", "h e", "l l", "he ll", "hell o", "Ġ hello", "e Ì"]


@dataclass
class TinyModel:
    """What goes into the file; tests change it before they write it."""

    metadata: dict[str, Any]
    tensors: dict[str, tuple[np.ndarray, GGMLQuantizationType]]

    def write(self, path: Path) -> Path:
        metadata = dict(self.metadata)
        writer = gguf.GGUFWriter(path, metadata.pop("general.architecture"))
        add = {int: writer.add_uint32, float: writer.add_float32, bool: writer.add_bool, str: writer.add_string}
        for key, value in metadata.items():
            add.get(type(value), writer.add_array)(key, value)
        for name, (array, quant) in self.tensors.items():
            writer.add_tensor(
                name, gguf.quantize(array, quant) if array.dtype == np.float32 else array, raw_dtype=quant
            )
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def _vocabulary() -> tuple[list[str], list[int]]:
    ordinary = sorted(ByteLevel.alphabet()) + [merge.replace(" ", "") for merge in MERGES]
    tokens = [*CONTROL_TOKENS, *ordinary, "<think>"]
    types = [TokenType.CONTROL] * 3 + [TokenType.NORMAL] * len(ordinary) + [TokenType.USER_DEFINED]
    return tokens, [int(kind) for kind in types]


def _tensor_shapes(vocabulary: int, hidden: int, inner: int) -> dict[str, tuple[int, ...]]:
    keys = hidden // HEADS * KV_HEADS
    layer = {
        "attn_norm": (hidden,),
        "attn_q": (hidden, hidden),
        "attn_k": (keys, hidden),
        "attn_v": (keys, hidden),
        "attn_output": (hidden, hidden),
        "ffn_norm": (hidden,),
        "ffn_gate": (inner, hidden),
        "ffn_up": (inner, hidden),
        "ffn_down": (hidden, inner),
    }
    shapes = {f"blk.{n}.{name}.weight": shape for n in range(LAYERS) for name, shape in layer.items()}
    return {"token_embd.weight": (vocabulary, hidden), "output_norm.weight": (hidden,), **shapes}


def make_tiny(
    seed: int = 0,
    quant: GGMLQuantizationType = GGMLQuantizationType.F32,
    hidden: int = HIDDEN,
    inner: int = INNER,
) -> TinyModel:
    tokens, types = _vocabulary()
    metadata = {
        "general.architecture": "llama",
        "general.name": "Tiny",
        "llama.block_count": LAYERS,
        "llama.context_length": 128,
        "llama.embedding_length": hidden,
        "llama.feed_forward_length": inner,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }
    random = np.random.default_rng(seed)
    tensors = {
        name: (random.standard_normal(shape, dtype=np.float32), quant if len(shape) > 1 else GGMLQuantizationType.F32)
        for name, shape in _tensor_shapes(len(tokens), hidden, inner).items()
    }
    return TinyModel(metadata, tensors)


@pytest.fixture(name="make_tiny")
def _make_tiny() -> Any:
    return make_tiny


@pytest.fixture
def tiny() -> TinyModel:
    return make_tiny()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "cache"
    monkeypatch.setenv("FASTDEPLOY_LP_CACHE", str(directory))
    return directory


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTDEPLOY_LP_CACHE", str(tmp_path_factory.mktemp("smollm2")))
        return resolve_model("SmolLM2-135M", show_progress=False)
