"""Products with matrices of K-quants: in float32 with the bits of dequantized weights; the same in any batch."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import paddle
import pytest
from support.decoders import PRECISIONS, Piece, Seats, Setting, Shape, compiled_decoder, run, run_alone, run_schedule
from support.k_quants import FORMATS, dequantized, random_k_blocks, write_k_quants
from support.reference_decoder import LEVELS, quantized_activations
from support.tiles import UNITS, passes_on

from fastdeploy_lp.model_executor.decoder_weights import DecoderWeights, FloatArray, LayerWeights, LinearWeights, Matrix
from fastdeploy_lp.model_executor.loader.weights import open_weights
from fastdeploy_lp.model_executor.models.decoder import Executor
from fastdeploy_lp.model_executor.ops.packed_weight import WeightFormat
from fastdeploy_lp.model_executor.ops.tiles import TileUnit

pytestmark = pytest.mark.usefixtures("ops")

# Rows of matrices have to be whole blocks of 256.
SHAPE = Shape(head_dim=64, kv_heads=2, group=2, hidden=256, intermediate=512, vocab=70)
# The types of a Q4_K_M file, of one of Q5_K_M, and others that are next to each other in a product.
TYPES = {
    "Q4_K_M": {"v_proj": "Q6_K", "down_proj": "Q6_K", "embedding": "Q6_K", "lm_head": "Q6_K"},
    "Q5_K_M": {**dict.fromkeys(("q_proj", "k_proj", "o_proj", "gate_proj", "up_proj"), "Q5_K"), "v_proj": "Q6_K"},
    "mixed": {"q_proj": "Q6_K", "k_proj": "Q5_K", "gate_proj": "Q6_K", "up_proj": "Q5_K", "o_proj": "Q6_K"},
}
ROWS = [1, 4, 6, 7, 10, 11, 33]
LAYER = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

WithDecoder = Callable[[str, str | None], tuple[Executor, Executor]]


def replaced(weights: DecoderWeights, change: Callable[[str, str, Matrix], Matrix]) -> DecoderWeights:
    """Weights with other matrices: change(name that is unique, projection, matrix)."""

    def layer(index: int, each: LayerWeights) -> LayerWeights:
        linears = {name: getattr(each, name) for name in LAYER}
        changed = {
            name: dataclasses.replace(linear, weight=change(f"{index}.{name}", name, linear.weight))
            for name, linear in linears.items()
        }
        return dataclasses.replace(each, **changed)

    head = weights.lm_head
    return dataclasses.replace(
        weights,
        embedding=change("embedding", "embedding", weights.embedding),
        layers=[layer(index, each) for index, each in enumerate(weights.layers)],
        lm_head=None if head is None else LinearWeights(change("lm_head", "lm_head", head.weight)),
    )


@pytest.fixture
def decoders(tmp_path: Path) -> WithDecoder:
    """A decoder with matrices of blocks, and one with their numbers in float32."""

    def make(types: str, quantization: str | None) -> tuple[Executor, Executor]:
        random, tensors = np.random.default_rng(7), {}
        weights = dataclasses.replace(SHAPE.weights(), layers=list(SHAPE.weights().layers))

        def draw(name: str, projection: str, matrix: Matrix) -> Matrix:
            kind = TYPES[types].get(projection, "Q4_K")
            blocks = random_k_blocks(random, *matrix.shape, kind)
            tensors[name] = (kind, blocks)
            return dequantized(blocks, kind)

        as_numbers = replaced(weights, draw)
        path = tmp_path / f"{types}.safetensors"
        write_k_quants(path, tensors)
        setting = Setting(quantization)
        with open_weights([path]) as opened:
            stored = replaced(as_numbers, lambda name, _, matrix: opened.matrix(name, matrix.shape))
            of_blocks = compiled_decoder(SHAPE, setting, stored)
        # Gate and up features of two types, which share panels, are read as numbers.
        expected = {FORMATS[kind] for kind, _ in tensors.values()}
        if quantization == "bfloat16":
            expected = {WeightFormat.BFLOAT16}
        assert types == "mixed" or set(of_blocks.weight_formats) <= expected
        return of_blocks, compiled_decoder(SHAPE, setting, as_numbers)

    return make


def seats_of(*lengths: int) -> Seats:
    random = np.random.default_rng(len(lengths))
    return Seats([random.integers(0, SHAPE.vocab, length) for length in lengths], 16, range(1, 200))


def assert_same_bits(found: list[FloatArray], expected: list[FloatArray]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert np.isfinite(other).all()
        np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))


@pytest.mark.parametrize("precision", [None, "bfloat16"])
@pytest.mark.parametrize("types", TYPES)
def test_floats_have_the_bits_of_dequantized_weights(decoders: WithDecoder, types: str, precision: str | None) -> None:
    of_blocks, of_numbers = decoders(types, precision)
    seats = seats_of(3, 33, 1, 70, 9)
    assert_same_bits(run_alone(of_blocks, seats), run_alone(of_numbers, seats))


@pytest.mark.parametrize("quantization", PRECISIONS)
@pytest.mark.parametrize("types", TYPES)
def test_any_number_of_rows_has_the_same_bits(decoders: WithDecoder, types: str, quantization: str | None) -> None:
    decoder, _ = decoders(types, quantization)
    seats = seats_of(*range(1, ROWS[-1] + 1))
    run(decoder, seats, [Piece(index, 0, index + 1, 0) for index in range(ROWS[-1])])
    last = [Piece(index, index, index + 1, 1) for index in range(ROWS[-1])]
    alone = [run(decoder, seats, [piece])[0] for piece in last]
    for rows in ROWS:
        assert_same_bits(run(decoder, seats, last[:rows]), alone[:rows])


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("quantization", ["bfloat16", "w8a8", "w8a16"])
@pytest.mark.parametrize("types", TYPES)
def test_tiles_have_the_same_bits(
    decoders: WithDecoder, ops: ctypes.CDLL, types: str, quantization: str, unit: TileUnit
) -> None:
    """Sections of a product may differ in whether they are computed in tiles."""
    decoder, _ = decoders(types, quantization)
    seats = seats_of(85, 8, 7)
    with passes_on(ops, TileUnit.SWITCHED_OFF):
        expected = run_alone(decoder, seats)
    with passes_on(ops, unit):
        assert_same_bits(run_alone(decoder, seats), expected)


@pytest.mark.parametrize("quantization", PRECISIONS)
def test_a_prompt_in_any_chunks_has_the_same_bits(decoders: WithDecoder, quantization: str | None) -> None:
    decoder, _ = decoders("Q4_K_M", quantization)
    seats = seats_of(61)
    whole = run_alone(decoder, seats)
    cuts = [0, 1, 8, 41, 61]
    steps = [[Piece(0, start, stop, stop - start)] for start, stop in pairwise(cuts)]
    assert_same_bits(run_schedule(decoder, seats, steps), whole)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("quantization", ["w8a8", "w8a16"])
@pytest.mark.parametrize("kind", sorted(FORMATS))
def test_quantized_products_round_activations_alone(tmp_path: Path, kind: str, quantization: str, rows: int) -> None:
    random = np.random.default_rng(rows)
    blocks = random_k_blocks(random, SHAPE.vocab, SHAPE.hidden, kind)
    write_k_quants(tmp_path / "model.safetensors", {"head": (kind, blocks)})
    with open_weights([tmp_path / "model.safetensors"]) as opened:
        head = LinearWeights(opened.matrix("head", (SHAPE.vocab, SHAPE.hidden)))
        weights = dataclasses.replace(SHAPE.weights(), lm_head=head)
        decoder = compiled_decoder(SHAPE, Setting(quantization), weights)
    hidden = random.standard_normal((rows, SHAPE.hidden), np.float32)
    # Only ever one sign: sums of activations show.
    hidden[0] = np.abs(hidden[0])
    found = decoder.compute_logits(paddle.to_tensor(hidden)).numpy()
    rounded = quantized_activations(hidden.astype(np.float64), LEVELS[quantization])
    expected = rounded @ dequantized(blocks, kind).astype(np.float64).T
    # A number halfway between two levels may go either way; levels are counted in float32 here, in float64 there.
    step = np.abs(hidden).max() / LEVELS[quantization] * np.abs(dequantized(blocks, kind)).max()
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=max(2e-5 * np.abs(expected).max(), 1.01 * step))
