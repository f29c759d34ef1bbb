"""8-bit weights: made by Paddle's operator, which a CPU has too, and multiplied in an emulation of the one it lacks."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import Tensor
from paddle.nn import quant

from fastdeploy_lp.model_executor.decoder_weights import LinearWeights
from fastdeploy_lp.model_executor.layers import linear as weight_only
from fastdeploy_lp.model_executor.layers.linear import Linear, WeightOnlyLinear, linear


def weights(out_features: int, in_features: int, *, bias: bool = False) -> LinearWeights:
    random = np.random.default_rng(out_features * in_features)
    matrix = random.standard_normal((out_features, in_features), np.float32)
    return LinearWeights(matrix, random.standard_normal(out_features, np.float32) if bias else None)


def quantize(x: Tensor, *, algo: str) -> tuple[Tensor, Tensor]:
    """The operator's numbers in plain order; a GPU's are in the order in which its kernels read them."""
    assert algo == "weight_only_int8"
    assert x.shape[0] % 64 == 0
    assert x.shape[1] % 16 == 0
    matrix = x.astype("float32").numpy()
    scale = np.abs(matrix).max(axis=0) / 127
    steps = np.divide(matrix, scale, out=np.zeros_like(matrix), where=scale > 0)
    return paddle.to_tensor(np.rint(steps).T.astype(np.int8)), paddle.to_tensor(scale, dtype=x.dtype)


def product(x: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor, dtype: str) -> Tensor:
    assert dtype == "int8"
    plain = weight.astype("float32") * scale.astype("float32").unsqueeze(1)
    out = paddle.matmul(x.astype("float32"), plain, transpose_y=True)
    return (out if bias is None else out + bias.astype("float32")).astype(x.dtype)


@pytest.mark.parametrize("sizes", [(16, 64), (48, 128), (50, 64), (16, 40)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_paddles_operator_takes_any_size(monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int], dtype: str) -> None:
    monkeypatch.setattr(quant.quantized_linear, "_get_arch_info", lambda: 80)
    given = weights(*sizes)
    made = WeightOnlyLinear(given, dtype)
    assert made._weight.dtype == paddle.int8
    assert made._weight.shape == [-(-sizes[0] // 16) * 16, -(-sizes[1] // 64) * 64]
    scale = made._scale.astype("float32").numpy()
    np.testing.assert_allclose(scale[: sizes[0]], np.abs(given.weight).max(axis=1) / 127, rtol=0.01)


@pytest.mark.parametrize("sizes", [(16, 64), (48, 128), (50, 64), (16, 40), (33, 100)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_product_is_that_of_the_weights_within_their_rounding(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int], bias: bool, dtype: str
) -> None:
    """Sizes that fill the operators' tiles and sizes that do not."""
    monkeypatch.setattr(weight_only, "weight_quantize", quantize)
    monkeypatch.setattr(weight_only, "weight_only_linear", product)
    given = weights(*sizes, bias=bias)
    x = paddle.to_tensor(np.random.default_rng(1).standard_normal((3, sizes[1]), np.float32), dtype=dtype)
    out = WeightOnlyLinear(given, dtype)(x)
    assert out.dtype == x.dtype
    exact = x.astype("float32").numpy() @ given.weight.T + (0 if given.bias is None else given.bias)
    # Half a step of the weights' scale at most, and the rounding of a short significand.
    steps = np.abs(given.weight).max(axis=1) / 127
    allowed = 0.6 * np.abs(x.astype("float32").numpy()).sum(axis=1)[:, None] * steps + 0.02 * np.abs(exact) + 0.05
    assert (np.abs(out.astype("float32").numpy() - exact) <= allowed).all()


def test_other_platforms_round_in_their_own_way() -> None:
    assert isinstance(linear(weights(16, 64), "w8a16"), Linear)
    assert isinstance(linear(weights(16, 64), None), Linear)
