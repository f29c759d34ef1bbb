"""Converts GGUF tensors to model.safetensors."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.quants import dequantize
from numpy.typing import NDArray
from tqdm import tqdm

from fastdeploy_lp.checkpoint.blocks import BLOCK_TYPES, BlockType
from fastdeploy_lp.checkpoint.gguf_architecture import WeightRule, architecture_of
from fastdeploy_lp.checkpoint.gguf_file import GgufFile, GgufTensor
from fastdeploy_lp.checkpoint.rope_order import undo_rope_interleaving
from fastdeploy_lp.checkpoint.safetensors_file import is_finite, write_safetensors

# Weights per block: few enough that the dequantized block stays in a core's cache.
BLOCK_FLOATS = 1 << 18


@dataclass(frozen=True)
class _Weight:
    """A tensor to convert. rope_heads: None for rows that are already in Hugging Face order."""

    tensor: GgufTensor
    target: str
    rope_heads: int | None

    @property
    def block_type(self) -> BlockType | None:
        """The type of blocks that the tensor keeps; None for a tensor that becomes float32."""
        return BLOCK_TYPES.get(self.tensor.quant.name) if len(self.tensor.shape) == 2 else None


def write_weights(file: GgufFile, config: dict[str, Any], path: Path, *, show_progress: bool) -> None:
    """Writes all tensors of `file` under their Hugging Face names, with few blocks of rows in memory.

    Matrices of a type of BLOCK_TYPES keep it, all others become float32.

    config: the model's config.json, which determines the required tensors and their shapes.

    Raises CheckpointError naming a tensor that is missing, not known, of another shape, or of a quantization that
    cannot be read; OSError when `path` cannot be written.
    """
    weights = _plan(file, config)
    bar = tqdm(weights, desc=f"Converting {file.path.name}", unit="tensor", disable=not show_progress)
    shapes = {weight.target: weight.tensor.shape for weight in weights}
    blocks = {weight.target: weight.tensor.quant.name for weight in weights if weight.block_type is not None}
    write_safetensors(path, shapes, _converted_blocks(file, bar), blocks=blocks)


def _plan(file: GgufFile, config: dict[str, Any]) -> list[_Weight]:
    """Matches tensors and rules one to one."""
    sizes = _sizes(config)
    weights = []
    unknown = dict(file.tensors)
    for name in architecture_of(file).config_tensors:
        unknown.pop(name, None)
    for source, target, rule in _expanded_rules(file, config):
        tensor = unknown.pop(source, None)
        if tensor is None:
            if rule.optional:
                continue
            raise file.error(f"tensor {source} is missing")
        expected = tuple(sizes[name] for name in rule.shape)
        if tensor.shape != expected:
            raise file.error(f"tensor {source} has shape {list(tensor.shape)}, not {list(expected)}")
        weights.append(_Weight(tensor, target, config[rule.rope_heads] if rule.rope_heads else None))
    if unknown:
        raise file.error(f"tensor {min(unknown)} is not part of the {config['model_type']} architecture")
    return weights


def _sizes(config: dict[str, Any]) -> dict[str, int]:
    """Returns the sizes by their names in WeightRule.shape."""
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    return {
        "vocab": config["vocab_size"],
        "hidden": config["hidden_size"],
        "inner": config["intermediate_size"],
        "both_inner": 2 * config["intermediate_size"],
        "queries": queries,
        "keys": keys,
        "queries_keys_values": queries + 2 * keys,
        "head": config["head_dim"],
    }


def _expanded_rules(file: GgufFile, config: dict[str, Any]) -> Iterator[tuple[str, str, WeightRule]]:
    architecture = architecture_of(file)
    for rule in architecture.model_weights:
        yield rule.source, rule.target, rule
    for layer in range(config["num_hidden_layers"]):
        for rule in architecture.layer_weights:
            yield rule.source.format(n=layer), rule.target.format(n=layer), rule


def _converted_blocks(file: GgufFile, weights: Iterable[_Weight]) -> Iterator[NDArray[Any]]:
    """Yields all tensors in blocks of rows, converted by one thread per core."""
    cores = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(cores) as pool:
        pending: deque[Future[NDArray[Any]]] = deque()
        for weight in weights:
            for data in _blocks(weight):
                pending.append(pool.submit(_converted, file, weight, data))
                if len(pending) > cores:
                    yield pending.popleft().result()
            file.release()
        while pending:
            yield pending.popleft().result()


def _blocks(weight: _Weight) -> Iterator[NDArray[np.uint8]]:
    """Yields the stored rows of a tensor in blocks that keep each head's rows together."""
    tensor = weight.tensor
    if len(tensor.shape) == 1:
        yield tensor.data
        return
    whole = tensor.shape[0] // weight.rope_heads if weight.rope_heads else 1
    rows = max(1, BLOCK_FLOATS // (math.prod(tensor.shape[1:]) * whole)) * whole
    for first in range(0, tensor.shape[0], rows):
        yield tensor.data[first : first + rows]


def _converted(file: GgufFile, weight: _Weight, data: NDArray[np.uint8]) -> NDArray[Any]:
    values: NDArray[Any]
    if weight.block_type is None:
        values = _dequantized(file, weight.tensor, data)
        finite = is_finite(values)
    else:
        values, finite = data, weight.block_type.is_finite(data)
    if not finite:
        raise file.error(f"tensor {weight.tensor.name} holds NaN or infinity")
    if weight.rope_heads is None:
        return values
    return undo_rope_interleaving(values, weight.rope_heads * len(values) // weight.tensor.shape[0])


def _dequantized(file: GgufFile, tensor: GgufTensor, data: NDArray[np.uint8]) -> NDArray[np.float32]:
    try:
        # A damaged scale may be NaN; the error raised for it names the tensor.
        with np.errstate(all="ignore"):
            return np.asarray(dequantize(data, tensor.quant), np.float32)
    except NotImplementedError as error:
        reason = f"tensor {tensor.name} has the quantization type {tensor.quant.name}, which cannot be read"
        raise file.error(reason) from error
