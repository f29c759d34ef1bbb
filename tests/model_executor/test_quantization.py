from __future__ import annotations

import ctypes
import dataclasses
from pathlib import Path

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.reference_decoder import GROUP, LEVELS, quantized_activations, quantized_weight
from support.stored_weights import STORED, as_stored
from support.tiny import tiny_fd_config

from fastdeploy_lp.model_executor.decoder_weights import FloatArray
from fastdeploy_lp.model_executor.layers.quantization import ACTIVATION_DIGITS, dequantized_weight, quantize_dequantize
from fastdeploy_lp.model_executor.loader.weights import open_weights
from fastdeploy_lp.model_executor.models.registry import model_class
from fastdeploy_lp.model_executor.ops.packed_weight import PackedWeight, WeightFormat

# Half floats end at 65504; a weight beyond that has no place in any checkpoint.
WIDEST = 60000.0
SIZES = [(1, 1), (1, 31), (33, 32), (40, 33), (16, 64), (70, 72), (3, 97)]


def unpacked(ops: ctypes.CDLL, weight: FloatArray, *, quantized: bool = True) -> tuple[WeightFormat, FloatArray]:
    """How the compiled operators pack the weights, and what they make of them once they are packed."""
    packed = PackedWeight.of(ops, weight, quantized=quantized)
    found = np.full_like(weight, np.nan)
    for row in range(len(weight)):
        ops.fdlp_unpack_row(address(found[row]), address(packed.data), packed.format, weight.shape[1], row)
    return packed.format, found


def address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def special_weights() -> dict[str, FloatArray]:
    """Groups that a rule for scales may trip over."""
    random = np.random.default_rng(0)
    normal = random.standard_normal((40, 70), np.float32)
    outliers = normal.copy()
    outliers[::7, ::9] *= 1000
    some_zero = normal.copy()
    some_zero[:, 32:64] = 0
    return {
        "zeros": np.zeros((40, 70), np.float32),
        "minus zeros": np.full((40, 70), -0.0, np.float32),
        "groups of zeros": some_zero,
        "constant": np.full((40, 70), 0.1, np.float32),
        "constant rows": np.repeat(normal[:, :1], 70, axis=1),
        "outliers": outliers,
        "steps below half floats": normal * np.float32(1e-7),
        "denormal steps": normal * np.float32(1e-4),
        "denormal numbers": normal * np.float32(1e-40),
        "far from zero": normal + np.float32(1000),
        "16 levels of no half float": np.float32(0.0123) * random.integers(0, 16, normal.shape, np.int8),
        "blocks with and without": np.concatenate([as_stored(normal, kind) for kind in sorted(STORED)]),
    }


weights_of_any_kind = hnp.arrays(
    np.float32,
    st.sampled_from(SIZES),
    elements=st.floats(-WIDEST, WIDEST, width=32, allow_subnormal=True),
)


@pytest.mark.parametrize("name", special_weights())
def test_packed_weights_stand_for_the_numbers_that_the_paddle_path_computes_with(name: str, ops: ctypes.CDLL) -> None:
    weight = special_weights()[name]
    # Adding zero takes the sign off zeros, the one thing in which they may differ.
    expected = dequantized_weight(weight) + np.float32(0)
    _, found = unpacked(ops, weight)
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@settings(max_examples=60)
@given(weight=weights_of_any_kind)
def test_any_packed_weights_do(weight: FloatArray, ops: ctypes.CDLL) -> None:
    # Adding zero takes the sign off zeros, the one thing in which they may differ.
    expected = dequantized_weight(weight) + np.float32(0)
    _, found = unpacked(ops, weight)
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("name", special_weights())
def test_dequantized_weights_are_those_of_plain_numpy(name: str) -> None:
    weight = special_weights()[name]
    np.testing.assert_array_equal(dequantized_weight(weight), quantized_weight(weight).astype(np.float32))


@settings(max_examples=60)
@given(weight=weights_of_any_kind)
def test_a_weight_moves_by_little_more_than_half_a_step(weight: FloatArray) -> None:
    moved = np.abs(dequantized_weight(weight).astype(np.float64) - weight)
    for start in range(0, weight.shape[1], GROUP):
        group = weight[:, start : start + GROUP].astype(np.float64)
        spread = group.max(axis=1) - group.min(axis=1)
        # Half floats keep 11 bits, which moves the minimum by 1/2048 of itself and the highest level, 255 steps above
        # it, by 1/2048 of the spread; below their normal range they keep a fixed distance of 2**-24.
        bound = spread / 255 / 2 + (np.abs(group.min(axis=1)) + spread) / 2048 + 256 * 2.0**-25
        assert (moved[:, start : start + GROUP].max(axis=1) <= bound * 1.001).all()


BLOCKS = sorted(set(STORED) - {"float32", "bfloat16", "float16"})


@pytest.mark.parametrize(("out_features", "in_features"), [(1, 32), (33, 34), (40, 96), (70, 75)])
@pytest.mark.parametrize("stored", BLOCKS)
def test_weights_of_gguf_blocks_lose_nothing(
    stored: str, out_features: int, in_features: int, ops: ctypes.CDLL
) -> None:
    weight = np.random.default_rng(0).standard_normal((out_features, in_features), np.float32)
    weight = as_stored(weight + np.float32(0.5), stored)
    np.testing.assert_array_equal(dequantized_weight(weight), weight)
    for quantized in (False, True):
        shortest, found = unpacked(ops, weight, quantized=quantized)
        assert shortest is STORED[stored]
        np.testing.assert_array_equal(found, weight)


@pytest.mark.parametrize("stored", BLOCKS)
def test_one_weight_between_the_levels_of_its_block_makes_a_longer_format(stored: str, ops: ctypes.CDLL) -> None:
    weight = as_stored(np.random.default_rng(0).standard_normal((40, 96), np.float32), stored)
    middle = np.argsort(weight[-1, :32])[16]
    weight[-1, middle] += np.float32(0.3) * (weight[-1, :32].max() - weight[-1, :32].min()) / 15
    shortest, found = unpacked(ops, weight, quantized=False)
    assert shortest is WeightFormat.FLOAT32
    np.testing.assert_array_equal(found, weight)
    shortest, found = unpacked(ops, weight, quantized=True)
    assert shortest is WeightFormat.LEVELS8
    np.testing.assert_array_equal(found, dequantized_weight(weight))
    # Whoever shares a matrix with that group is as exact as before.
    np.testing.assert_array_equal(found[:-1], weight[:-1])


@given(weight=weights_of_any_kind, stored=st.sampled_from(("float32", "float16", "bfloat16")))
def test_weights_that_are_not_quantized_are_packed_as_they_are(
    weight: FloatArray, stored: str, ops: ctypes.CDLL
) -> None:
    # Adding zero takes the sign off zeros, which levels do not keep.
    weight = as_stored(weight, stored) + np.float32(0)
    shortest, found = unpacked(ops, weight, quantized=False)
    assert shortest.bits <= STORED[stored].bits
    np.testing.assert_array_equal(found.view(np.uint32), weight.view(np.uint32))


@pytest.mark.parametrize("name", special_weights())
def test_special_weights_too(name: str, ops: ctypes.CDLL) -> None:
    weight = special_weights()[name] + np.float32(0)
    _, found = unpacked(ops, weight, quantized=False)
    np.testing.assert_array_equal(found.view(np.uint32), weight.view(np.uint32))


def panel(kind: str) -> FloatArray:
    """32 rows that this format is the shortest for; zeros have a place in all of them."""
    random = np.random.default_rng(3)
    if kind == "zeros":
        return np.zeros((32, 64), np.float32)
    if kind.startswith("levels"):
        low, high = {"levels4": (0, 15), "levels5": (0, 31), "levels8": (-127, 127)}[kind]
        levels = random.integers(low, high + 1, (32, 64))
        levels[:, ::32], levels[:, 1::32] = low, high
        return levels.astype(np.float32) * np.float32(0.25)
    bits = {"float16": 13, "bfloat16": 16, "float32": 0}[kind]
    normal = random.standard_normal((32, 64), np.float32)
    if kind == "bfloat16":
        normal[:, ::16] *= np.float32(1e-9)
    return (normal.view(np.uint32) >> bits << bits).view(np.float32)


@pytest.mark.parametrize(
    ("kinds", "shortest"),
    [
        (("zeros", "levels4"), WeightFormat.LEVELS4),
        (("levels4", "levels5", "zeros"), WeightFormat.LEVELS5),
        (("levels4", "levels5", "levels8"), WeightFormat.LEVELS8),
        (("zeros", "bfloat16"), WeightFormat.BFLOAT16),
        (("levels4", "float16"), WeightFormat.FLOAT16),
        (("float16", "bfloat16"), WeightFormat.FLOAT32),
        (("zeros", "levels4", "levels8", "bfloat16", "float32"), WeightFormat.FLOAT32),
    ],
)
def test_the_shortest_format_of_all_panels_is_found_in_whatever_order_they_come(
    kinds: tuple[str, ...], shortest: WeightFormat, ops: ctypes.CDLL
) -> None:
    for order in (kinds, kinds[::-1]):
        weight = np.concatenate([panel(kind) for kind in order])
        found, numbers = unpacked(ops, weight, quantized=False)
        assert found is shortest
        np.testing.assert_array_equal(numbers, weight)
        rounded, _ = unpacked(ops, weight)
        assert rounded is (shortest if shortest >= WeightFormat.LEVELS8 else WeightFormat.LEVELS8)


def test_a_group_that_is_not_filled_does_not_depend_on_what_would_have_filled_it() -> None:
    weight = np.random.default_rng(0).uniform(5, 6, (7, 64)).astype(np.float32)
    for features in range(1, 64):
        cut = dequantized_weight(np.ascontiguousarray(weight[:, :features]))
        whole = features // GROUP * GROUP
        np.testing.assert_array_equal(cut[:, :whole], dequantized_weight(weight)[:, :whole])
        # No zero among the numbers: a filling of zeros would stretch the group's range by a factor of five.
        assert np.abs(cut - weight[:, :features]).max() <= 1 / 255


@pytest.mark.parametrize("quantization", ["w8a8", "w8a16"])
@pytest.mark.parametrize("features", [1, 8, 31, 32, 33, 72, 96])
def test_activations_are_rounded_as_plain_numpy_rounds_them(quantization: str, features: int) -> None:
    random = np.random.default_rng(features)
    x = random.standard_normal((9, features), np.float32) * random.choice([1e-6, 1.0, 1e6], (9, features))
    x = x.astype(np.float32)
    x[4] = 0
    rounded = quantize_dequantize(paddle.to_tensor(x), ACTIVATION_DIGITS[quantization]).numpy()
    expected = quantized_activations(x.astype(np.float64), LEVELS[quantization])
    assert rounded.shape == x.shape
    for start in range(0, features, GROUP):
        part = slice(start, start + GROUP)
        step = np.abs(x[:, part]).max(axis=1, keepdims=True) / LEVELS[quantization]
        # A number halfway between two levels may go either way, at a step's distance.
        far = np.abs(rounded[:, part] - expected[:, part]) > step * 1e-2
        assert far.mean() <= 0.01
        assert (np.abs(rounded[:, part] - x[:, part]) <= step * 0.51).all()


@pytest.mark.parametrize("digits", [1, 2])
def test_a_rows_rounding_does_not_depend_on_its_batch(digits: int) -> None:
    x = paddle.randn([17, 72])
    x[5] *= 1e6
    together = quantize_dequantize(x, digits).numpy()
    for row in range(17):
        np.testing.assert_array_equal(quantize_dequantize(x[row : row + 1], digits).numpy()[0], together[row])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("quantization", ["w8a8", "w8a16"])
def test_a_number_that_is_none_shows_in_its_row_and_in_no_other(quantization: str, bad: float) -> None:
    fd_config = tiny_fd_config("tiny-llama")
    config = dataclasses.replace(fd_config.model_config, quantization=quantization)
    with paddle.no_grad(), open_weights([Path(config.directory) / "model.safetensors"]) as weights:
        model = model_class(config.hf_config)(dataclasses.replace(fd_config, model_config=config), weights)
        model.initialize_cache(fd_config.cache_config.num_blocks)
    hidden = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    clean = model.compute_logits(paddle.to_tensor(hidden)).numpy()
    hidden[1, 40] = bad
    spoiled = model.compute_logits(paddle.to_tensor(hidden)).numpy()
    assert not np.isfinite(spoiled[1]).any()
    np.testing.assert_array_equal(spoiled[[0, 2]], clean[[0, 2]])
