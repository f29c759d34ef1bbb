"""Weights of a Hugging Face checkpoint in the parameters of PaddleFormers' models.

A model's class has statements that derive its parameters from the checkpoint's tensors: renamed, transposed, joined and
divided. Paddle interprets the statements; `Weights` reads the tensors as for every family.
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle.distributed.flex_checkpoint.aoa.aoa_engine import AOAEngine, ShardedWeightDesc

from fastdeploy_lp.checkpoint.config_field import positive_int
from fastdeploy_lp.model_executor.loader.weights import Weights, WeightsError

Slices = tuple[slice, ...]
# Every tensor is read as float32, so that conversions between types have no effect.
_DTYPE = "float32"
_MISSING = " should be assigned before!"


@dataclass(frozen=True)
class Piece:
    """A part of a tensor in the checkpoint and its place in a parameter. axes: its permutations, first to last."""

    tensor: str
    source: Slices
    target: Slices
    axes: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """The number of weights."""
        return math.prod(each.stop - each.start for each in self.source)


def fill(model: Any, weights: Weights) -> None:
    """Gives every parameter and persistent buffer of `model`, which has no memory yet, its weights.

    Raises WeightsError for a tensor that is missing, damaged, or of another shape than the model's.
    """
    shapes = weights.shapes()
    targets = {name: tuple(each.global_shape) for name, each in model.sharded_state_dict().items()}
    plan = _plan(type(model)._gen_aoa_config(model.config), shapes, targets, weights.where)
    reader = _Reader(weights, shapes)
    for name, parameter in model.state_dict().items():
        array = reader.assemble(plan[name], targets[name])
        loaded = paddle.to_tensor(array.reshape(parameter.shape), dtype=parameter.dtype)
        parameter.get_tensor()._share_data_with(loaded.get_tensor())
    _require_used_whole(plan, shapes, weights.where)


def skip_drafts(weights: Weights, hf_config: dict[str, Any]) -> None:
    """Leaves out tensors of layers that draft further tokens, if `config.json` has such layers."""
    if not hf_config.get("num_nextn_predict_layers"):
        return
    layers = positive_int(hf_config, "num_hidden_layers")
    for name in weights.shapes():
        if _drafts(name, layers):
            weights.skip(name)


def _plan(
    statements: Any, shapes: dict[str, tuple[int, ...]], targets: dict[str, tuple[int, ...]], where: str
) -> dict[str, list[Piece]]:
    """Returns the pieces of each parameter; raises WeightsError if they do not fill it."""
    try:
        engine = AOAEngine(
            {**statements, "enable_traceback": False},
            {name: [_whole(name, shape)] for name, shape in shapes.items()},
            {name: [_whole(name, shape)] for name, shape in targets.items()},
        )
    except (AssertionError, KeyError, RuntimeError, SyntaxError, ValueError) as error:
        raise WeightsError(f"{where}: tensors do not fit the model: {_reason(error)}") from error
    plan = {}
    for name, shape in targets.items():
        try:
            entries = engine.find_shard_sources(_whole(name, shape))
        except (AssertionError, KeyError, ValueError) as error:
            raise WeightsError(f"{where}: tensors do not fit {name}: {_reason(error)}") from error
        pieces = [_piece(entry) for entry in entries]
        if sum(piece.size for piece in pieces) != math.prod(shape):
            found = ", ".join(
                f"{each} {list(shapes[each])}" for each in dict.fromkeys(piece.tensor for piece in pieces)
            )
            raise WeightsError(
                f"{where}: {found or 'no tensor'} does not fill {name}; config.json makes it {list(shape)}"
            )
        plan[name] = pieces
    return plan


def _whole(name: str, shape: tuple[int, ...]) -> Any:
    return ShardedWeightDesc(name, shape, shape, (0,) * len(shape), _DTYPE)


def _piece(entry: Any) -> Piece:
    permutations = [each for each in entry.postprocess_list or () if each.startswith("[")]
    return Piece(
        entry.source_slice.key,
        _slices(entry.source_slice),
        _slices(entry.target_slice),
        tuple(tuple(ast.literal_eval(each)) for each in permutations),
    )


def _slices(part: Any) -> Slices:
    return tuple(slice(first, first + size) for first, size in zip(part.global_offset, part.local_shape, strict=True))


def _reason(error: Exception) -> str:
    """Returns Paddle's message, which names a missing tensor in two ways."""
    text = " ".join(str(error.args[0] if error.args else error).split())
    if isinstance(error, KeyError) or text.endswith(_MISSING):
        return f"tensor {text.removesuffix(_MISSING)} is missing"
    return text


class _Reader:
    """Reads tensors, and keeps the last one: parameters that share it follow each other."""

    def __init__(self, weights: Weights, shapes: dict[str, tuple[int, ...]]) -> None:
        self._weights = weights
        self._shapes = shapes
        self._last: tuple[str, NDArray[np.float32]] | None = None

    def assemble(self, pieces: Iterable[Piece], shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Returns a parameter."""
        array = np.empty(shape, np.float32)
        for piece in pieces:
            part = self._tensor(piece.tensor)[piece.source]
            for axes in piece.axes:
                part = part.transpose(axes)
            array[piece.target] = part
        return array

    def _tensor(self, name: str) -> NDArray[np.float32]:
        if self._last is None or self._last[0] != name:
            self._last = None
            self._last = (name, self._weights.take(name, self._shapes[name]))
        return self._last[1]


def _require_used_whole(plan: dict[str, list[Piece]], shapes: dict[str, tuple[int, ...]], where: str) -> None:
    used: Counter[str] = Counter()
    for pieces in plan.values():
        used.update({piece.tensor: 0 for piece in pieces})
        for piece in pieces:
            used[piece.tensor] += piece.size
    for name, count in used.items():
        if count < math.prod(shapes[name]):
            raise WeightsError(
                f"{where}: tensor {name} has shape {list(shapes[name])}; config.json makes it {count} numbers"
            )


def _drafts(name: str, layers: int) -> bool:
    number = re.match(r"model\.layers\.(\d{1,9})\.", name)
    return int(number[1]) >= layers if number else any(part.startswith("mtp") for part in name.split("."))
