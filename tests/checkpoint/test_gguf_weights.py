from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from safetensors.numpy import load_file
from support.gguf_model import random_blocks

from fastdeploy_lp.checkpoint import CheckpointError, ModelFiles, gguf_weights
from fastdeploy_lp.checkpoint.blocks import BLOCK_TYPES as KEPT_TYPES
from fastdeploy_lp.checkpoint.convert import convert_gguf
from fastdeploy_lp.checkpoint.safetensors_file import read_header, write_safetensors

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16

QUANTS = [
    GGMLQuantizationType.F32,
    GGMLQuantizationType.F16,
    GGMLQuantizationType.BF16,
    GGMLQuantizationType.Q8_0,
    GGMLQuantizationType.Q4_1,
]


def convert(model: Any, tmp_path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Weights and config of the converted model."""
    convert_gguf(model.write(tmp_path / "tiny.gguf"), tmp_path, show_progress=False)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    for name, tensor in read_header(path).items():
        if tensor.dtype in KEPT_TYPES:
            weights[name] = KEPT_TYPES[tensor.dtype].floats(weights[name])
            assert weights[name].shape == tensor.shape
    return weights, json.loads((tmp_path / "config.json").read_text())


def stored(model: Any, name: str) -> np.ndarray:
    """The values that the GGUF holds, after quantization."""
    array, quant = model.tensors[name]
    return gguf.dequantize(gguf.quantize(array, quant), quant)


# Values


@pytest.mark.parametrize("quant", QUANTS, ids=lambda quant: quant.name)
def test_weights_are_exactly_the_dequantized_ones(
    tmp_path: Path, make_tiny: Callable[..., Any], quant: GGMLQuantizationType
) -> None:
    model = make_tiny(quant=quant)
    weights, _ = convert(model, tmp_path)
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}
    for layer in range(2):
        names |= {
            f"model.layers.{layer}.{ours}": f"blk.{layer}.{theirs}"
            for ours, theirs in {
                "input_layernorm": "attn_norm",
                "post_attention_layernorm": "ffn_norm",
                "self_attn.v_proj": "attn_v",
                "self_attn.o_proj": "attn_output",
                "mlp.gate_proj": "ffn_gate",
                "mlp.up_proj": "ffn_up",
                "mlp.down_proj": "ffn_down",
            }.items()
        }
    for ours, theirs in names.items():
        assert weights[f"{ours}.weight"].dtype == np.float32
        np.testing.assert_array_equal(weights.pop(f"{ours}.weight"), stored(model, f"{theirs}.weight"))
    assert set(weights) == {f"model.layers.{n}.self_attn.{p}_proj.weight" for n in range(2) for p in "qk"}


def rotate_interleaved(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """x [positions, heads, head_dim]: coordinates 2i and 2i+1 form the pair that angle i turns."""
    pairs = x[..., 0::2] + 1j * x[..., 1::2]
    return pairs * np.exp(1j * angles)[:, None, :]


def rotate_half(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """x [positions, heads, head_dim]: coordinates i and i + head_dim/2 form the pair that angle i turns."""
    half = x.shape[-1] // 2
    return (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)[:, None, :]


def attention_scores(
    rotate: Callable[..., np.ndarray], x: np.ndarray, queries: np.ndarray, keys: np.ndarray
) -> np.ndarray:
    """Scores [heads, positions, positions] of grouped-query attention over x [positions, hidden]."""
    angles = np.outer(np.arange(len(x)), 10000.0 ** -(np.arange(0, HEAD_DIM, 2) / HEAD_DIM))
    q = rotate((x @ queries.T).reshape(len(x), HEADS, HEAD_DIM), angles)
    k = rotate((x @ keys.T).reshape(len(x), KV_HEADS, HEAD_DIM), angles).repeat(HEADS // KV_HEADS, axis=1)
    # The real part of a product with the conjugate is the dot product of the pairs.
    return np.einsum("qhd,khd->hqk", q, k.conj()).real


@pytest.mark.parametrize("quant", [GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0], ids=lambda quant: quant.name)
def test_rotating_halves_gives_the_attention_scores_of_the_interleaved_original(
    tmp_path: Path, make_tiny: Callable[..., Any], quant: GGMLQuantizationType
) -> None:
    model = make_tiny(quant=quant)
    weights, _ = convert(model, tmp_path)
    x = np.random.default_rng(7).standard_normal((9, 64))
    for layer in range(2):
        original = [stored(model, f"blk.{layer}.attn_{part}.weight").astype(np.float64) for part in "qk"]
        converted = [weights[f"model.layers.{layer}.self_attn.{part}_proj.weight"].astype(np.float64) for part in "qk"]
        expected = attention_scores(rotate_interleaved, x, *original)
        np.testing.assert_allclose(attention_scores(rotate_half, x, *converted), expected, rtol=1e-9, atol=1e-9)
        assert not np.allclose(attention_scores(rotate_half, x, *original), expected, rtol=1e-2)


@pytest.mark.parametrize("block", [1, 1000, 4096])
def test_the_size_of_blocks_does_not_show(
    tmp_path: Path, make_tiny: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    model = make_tiny(quant=GGMLQuantizationType.Q8_0)
    whole, _ = convert(model, tmp_path)
    monkeypatch.setattr(gguf_weights, "BLOCK_FLOATS", block)
    pieces, _ = convert(model, tmp_path)
    assert whole.keys() == pieces.keys()
    for name, tensor in whole.items():
        np.testing.assert_array_equal(pieces[name], tensor)


def test_an_own_output_matrix_becomes_lm_head(tmp_path: Path, tiny: Any) -> None:
    embedding, quant = tiny.tensors["token_embd.weight"]
    tiny.tensors["output.weight"] = (embedding * 2, quant)
    weights, config = convert(tiny, tmp_path)
    np.testing.assert_array_equal(weights["lm_head.weight"], embedding * 2)
    assert config["tie_word_embeddings"] is False


def test_rope_factors_are_no_weight(tmp_path: Path, tiny: Any) -> None:
    tiny.tensors["rope_freqs.weight"] = (np.ones(8, np.float32), GGMLQuantizationType.F32)
    assert len(convert(tiny, tmp_path)[0]) == 2 + 2 * 9


# Every quantization type

BLOCK_TYPES = sorted(set(gguf.quants._type_traits) - {GGMLQuantizationType.BF16}, key=lambda quant: quant.name)


@pytest.mark.parametrize("quant", BLOCK_TYPES, ids=lambda quant: quant.name)
def test_blocks_of_every_type_are_read_as_the_library_reads_them(
    tmp_path: Path, make_tiny: Callable[..., Any], quant: GGMLQuantizationType
) -> None:
    """Whatever bytes they are made of: only some types can be quantized to here, all can be read."""
    model, random = make_tiny(hidden=256, inner=256), np.random.default_rng(int(quant))
    for name, (array, _) in model.tensors.items():
        if array.ndim > 1:
            model.tensors[name] = (random_blocks(random, array.shape, quant), quant)
    weights, _ = convert(model, tmp_path)
    for ours, theirs in (("mlp.down_proj", "ffn_down"), ("self_attn.v_proj", "attn_v")):
        blocks, _ = model.tensors[f"blk.1.{theirs}.weight"]
        expected = gguf.dequantize(blocks, quant)
        np.testing.assert_array_equal(weights[f"model.layers.1.{ours}.weight"], expected)


@pytest.mark.parametrize("kind", sorted(KEPT_TYPES))
def test_blocks_that_are_kept_are_those_of_the_file(tmp_path: Path, make_tiny: Callable[..., Any], kind: str) -> None:
    """Queries and keys, too, whose rows change places."""
    model, random, quant = make_tiny(hidden=256, inner=256), np.random.default_rng(0), GGMLQuantizationType[kind]
    for name, (array, _) in model.tensors.items():
        if array.ndim > 1:
            model.tensors[name] = (random_blocks(random, array.shape, quant), quant)
    convert(model, tmp_path)
    found = load_file(tmp_path / "model.safetensors")
    headers = read_header(tmp_path / "model.safetensors")
    kept = {name for name, tensor in headers.items() if tensor.dtype == kind}
    assert kept == {name for name, array in found.items() if array.ndim == 2}
    np.testing.assert_array_equal(found["model.layers.1.mlp.up_proj.weight"], model.tensors["blk.1.ffn_up.weight"][0])
    queries = model.tensors["blk.0.attn_q.weight"][0]
    pairs = queries.reshape(HEADS, -1, 2, queries.shape[1]).swapaxes(1, 2).reshape(queries.shape)
    np.testing.assert_array_equal(found["model.layers.0.self_attn.q_proj.weight"], pairs)


@pytest.mark.parametrize("kind", sorted(KEPT_TYPES))
def test_a_block_whose_scale_is_no_number_names_its_tensor(
    tmp_path: Path, make_tiny: Callable[..., Any], kind: str
) -> None:
    quant, block = GGMLQuantizationType[kind], KEPT_TYPES[kind]
    for place in block.scales:
        model = make_tiny(hidden=256, inner=256)
        blocks = random_blocks(np.random.default_rng(0), (256, 256), quant)
        blocks[-1, place : place + 2] = np.frombuffer(np.float16(np.nan).tobytes(), np.uint8)
        model.tensors["blk.1.ffn_up.weight"] = (blocks, quant)
        with pytest.raises(CheckpointError, match=r"tensor blk\.1\.ffn_up\.weight holds NaN or infinity"):
            convert(model, tmp_path)


def test_all_types_of_the_library_are_tested() -> None:
    assert len(BLOCK_TYPES) >= 22
    assert {"Q4_K", "Q6_K", "IQ1_M", "IQ4_XS", "TQ2_0", "MXFP4"} <= {quant.name for quant in BLOCK_TYPES}


# Models that cannot be converted


def put(name: str, shape: tuple[int, ...]) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        model.tensors[name] = (np.full(shape, 3.0, np.float32), GGMLQuantizationType.F32)

    return change


def drop(name: str) -> Callable[[Any], None]:
    return lambda model: model.tensors.pop(name)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (drop("blk.1.attn_q.weight"), r"tensor blk\.1\.attn_q\.weight is missing"),
        (drop("token_embd.weight"), r"tensor token_embd\.weight is missing"),
        (put("blk.0.attn_q.bias", (64,)), r"tensor blk\.0\.attn_q\.bias is not part of the llama architecture"),
        (put("blk.2.attn_q.weight", (64, 64)), r"tensor blk\.2\.attn_q\.weight is not part of"),
        (put("blk.0.attn_k.weight", (64, 64)), r"blk\.0\.attn_k\.weight has shape \[64, 64\], not \[32, 64\]"),
    ],
)
def test_a_model_that_cannot_be_converted_says_why(
    tmp_path: Path, tiny: Any, change: Callable[[Any], None], reason: str
) -> None:
    change(tiny)
    with pytest.raises(CheckpointError, match=reason) as caught:
        convert(tiny, tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'tiny.gguf'}: ")
    assert "; give " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_quantization_that_cannot_be_read_names_tensor_and_type(tmp_path: Path, tiny: Any) -> None:
    tiny.tensors["output_norm.weight"] = (np.zeros(64, np.int32), GGMLQuantizationType.I32)
    with pytest.raises(CheckpointError, match=r"tensor output_norm\.weight has the quantization type I32"):
        convert(tiny, tmp_path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_no_number_names_its_tensor(tmp_path: Path, tiny: Any, value: float) -> None:
    array, quant = tiny.tensors["blk.1.ffn_up.weight"]
    array[3, 5] = value
    tiny.tensors["blk.1.ffn_up.weight"] = (array, quant)
    with pytest.raises(CheckpointError, match=r"tensor blk\.1\.ffn_up\.weight holds NaN or infinity"):
        convert(tiny, tmp_path)


@pytest.mark.parametrize(
    "pieces",
    [
        [(3, 2)],
        [(3, 3)],
        [(1, 3)],
        [(1, 3), (2, 3)],
        [(1, 3), (1, 2)],
        [(2, 3), (1, 3)],
        [(1, 3), (2,)],
        [],
    ],
)
def test_the_writer_refuses_arrays_of_another_shape(tmp_path: Path, pieces: list[tuple[int, ...]]) -> None:
    arrays = [np.zeros(shape, np.float32) for shape in pieces]
    with pytest.raises(ValueError, match=r"announced was|more arrays"):
        write_safetensors(tmp_path / "a.safetensors", {"a": (2, 3)}, arrays)


def test_the_writer_takes_rows_in_pieces(tmp_path: Path) -> None:
    array = np.arange(15, dtype=np.float32).reshape(5, 3)
    write_safetensors(tmp_path / "a.safetensors", {"a": (5, 3), "b": ()}, [*np.split(array, [2, 3]), np.float32(7)])
    written = load_file(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(written["a"], array)
    assert written["b"] == 7


# The real model


def test_smollm2_has_every_tensor_in_its_place(smollm2: ModelFiles) -> None:
    weights = load_file(smollm2.weights[0])
    assert len(weights) == 272
    assert sum(weight.size for weight in weights.values()) == 134_515_008
    assert weights["model.layers.29.self_attn.k_proj.weight"].shape == (192, 576)
    assert all(np.isfinite(weight).all() for weight in weights.values())
    assert smollm2.config["tie_word_embeddings"] is True
    assert smollm2.config["rope_theta"] == 100000.0
    assert smollm2.config["eos_token_id"] == 2
