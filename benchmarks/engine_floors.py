"""Floors of a decode step: its matrix products alone, and reading its weights and keys from memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import paddle
from engine_native import (
    CompileError,
    MemoryStream,
    OneDnnRows,
    OurProducts,
    Products,
    Shape,
    compile_native,
    compile_onednn,
    stream_bytes,
)
from engine_report import ATTENTION, BANDWIDTH, BFLOAT16, Job

from fastdeploy_lp.model_executor.layers.quantization import ACTIVATION_DIGITS
from fastdeploy_lp.model_executor.models.dimensions import Dimensions
from fastdeploy_lp.model_executor.ops import compiled_ops
from fastdeploy_lp.model_executor.ops.packed_weight import WeightFormat

Call = Callable[[], object]

# A product so large that it runs at the processor's full rate, and small enough for its caches.
SQUARE = 256


class Floors:
    """Floors of the steps: the products alone, by our kernels and by oneDNN, attention's, and reading memory."""

    def __init__(
        self,
        job: Job,
        dims: Dimensions,
        weight_formats: list[WeightFormat],
        kv_bytes_per_token: int,
        skipped: list[str],
    ) -> None:
        self._dims, self._kv_bytes_per_token, self._skipped = dims, kv_bytes_per_token, skipped
        self._digits, self._bfloat16 = ACTIVATION_DIGITS[job.quantization], job.quantization == BFLOAT16
        # Without compiled operators the model reports none, and there is nothing to compare with.
        self._shapes = step_shapes(dims, weight_formats) if weight_formats else []
        self._ours: OurProducts | None = None
        self._onednn_library: Path | None = None
        try:
            self._compile(job)
        except CompileError as error:
            skipped.append(f"floors: {error}")

    def _compile(self, job: Job) -> None:
        ops, directory = compiled_ops(), Path(job.harnesses)
        if ops is None:
            raise CompileError("no compiled operators")
        native = compile_native(directory, quickly=not job.sizes.counts)
        self._ours = OurProducts(native, ops, self._shapes, self._digits, bfloat16=self._bfloat16)
        self._stream = MemoryStream(native, job.sizes.stream_bytes or stream_bytes())
        if job.onednn_include is not None:
            library = Path(paddle.__file__).parent / "libs" / "libdnnl.so.3"
            self._onednn_library = compile_onednn(directory, Path(job.onednn_include), library)

    @property
    def weight_bytes(self) -> int | None:
        """Bytes of weights that one step reads; None without compiled operators."""
        return None if self._ours is None else self._ours.weight_bytes

    def products(self, rows: int) -> dict[str, Call]:
        """By name, a step's products for so many rows; empty without compiled operators."""
        if self._ours is None:
            return {}
        products: dict[str, Products] = {"our products": self._ours.rows(rows)}
        onednn = self._onednn(rows)
        if onednn is not None:
            products["oneDNN products"] = onednn
        return {name: each.multiply for name, each in products.items()}

    def reading(self, rows: int, context: int) -> tuple[dict[str, Call], int]:
        """Reading as many bytes as a step of so many rows has to read at this context, and how many that are.

        As many, not a larger sample: on a busy machine a long call is interrupted more often than a short one.
        """
        if self._ours is None:
            return {}, 0
        size = self._ours.weight_bytes + rows * context * self._kv_bytes_per_token
        return {BANDWIDTH: partial(self._stream.read, size)}, size

    def attention(self, rows: int, context: int) -> dict[str, Call]:
        """As many float32 multiplications as attention has in a step, by oneDNN in one product; empty without it.

        At the rate of such a product, that is: attention itself has many small ones, and reads keys and values.
        """
        if self._onednn_library is None:
            return {}
        shape = attention_shape(self._dims, rows, context)
        return {ATTENTION: OneDnnRows(self._onednn_library, [shape], SQUARE, int8=False).multiply}

    def _onednn(self, rows: int) -> Products | None:
        # Its products in bfloat16 are not measured here.
        if self._onednn_library is None or self._bfloat16:
            return None
        try:
            # Two digits of an activation are two rows of 8-bit numbers.
            return OneDnnRows(self._onednn_library, self._shapes, rows * max(self._digits, 1), int8=self._digits > 0)
        except RuntimeError as error:
            self._skipped.append(f"oneDNN at {rows} rows: {error}")
            return None


def step_shapes(dims: Dimensions, weight_formats: list[WeightFormat]) -> list[Shape]:
    """The matrix products of one decode step, in order; `weight_formats` says how the model's weights are packed."""
    heads = (dims.num_heads + 2 * dims.num_kv_heads) * dims.head_dim
    layer = [
        (dims.hidden_size, heads),
        (dims.num_heads * dims.head_dim, dims.hidden_size),
        (dims.hidden_size, 2 * dims.intermediate_size),
        (dims.intermediate_size, dims.hidden_size),
    ]
    sizes = [*layer * dims.num_layers, (dims.hidden_size, dims.vocab_size)]
    return [Shape(*size, packed) for size, packed in zip(sizes, weight_formats, strict=True)]


def attention_shape(dims: Dimensions, rows: int, context: int) -> Shape:
    """With `SQUARE` rows, as many multiplications as queries with keys and their weights with values have together."""
    multiplications = 2 * rows * context * dims.num_heads * dims.head_dim * dims.num_layers
    return Shape(SQUARE, max(round(multiplications / SQUARE**2), 1), WeightFormat.FLOAT32)
