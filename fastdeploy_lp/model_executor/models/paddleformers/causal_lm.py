"""A causal language model of PaddleFormers, served like every other family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import paddle
from paddle import Tensor

from fastdeploy_lp.checkpoint.config_field import positive_int, texts
from fastdeploy_lp.checkpoint.errors import CheckpointError
from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.model_executor.block_copier import BlockCopier
from fastdeploy_lp.model_executor.forward_batch import ForwardBatchBuilder, SequenceChunk
from fastdeploy_lp.model_executor.loader.weights import Weights
from fastdeploy_lp.model_executor.models.paddleformers.attention import (
    CachedAttention,
    LayerAttention,
    MeasuringAttention,
)
from fastdeploy_lp.model_executor.models.paddleformers.converted_weights import fill, skip_drafts
from fastdeploy_lp.model_executor.models.paddleformers.family import build, find_family
from fastdeploy_lp.model_executor.models.paddleformers.probe import inputs, measure
from fastdeploy_lp.platforms import current_platform
from fastdeploy_lp.startup.cache_size import ELEMENT_BYTES, kv_bytes_per_token


class PaddleFormersForCausalLM:
    """PaddleFormers computes everything but attention, in float32; keys and values are in the paged cache.

    Raises CheckpointError for a model that cannot be served this way, with the reason.
    """

    def __init__(self, fd_config: FDConfig, weights: Weights) -> None:
        _require_float32(fd_config)
        hf_config = fd_config.model_config.hf_config
        architectures = texts(hf_config, "architectures")
        family = find_family(architectures)
        measuring = MeasuringAttention()
        name = f"fastdeploy_lp_{id(self):x}"
        model = build(family, hf_config, name, len(weights.shapes()))
        fill(model, weights)
        skip_drafts(weights, hf_config)
        self._body, self._head = getattr(model, model.base_model_prefix), model.lm_head
        _register(name, measuring)
        layers = measure(model, self._body, self._head, measuring)
        _require_attention(family.__name__, layers, fd_config)
        cache = fd_config.cache_config
        self._attention = CachedAttention(layers, cache.block_size, half=cache.dtype == "float16")
        _register(name, self._attention)
        sizes, windows = layers[0].sizes, {each.window for each in layers if each.window is not None}
        self._batches = ForwardBatchBuilder(sizes.num_heads, sizes.num_kv_heads, cache.block_size, sorted(windows))

    def initialize_cache(self, num_blocks: int) -> None:
        """See `CausalLM`."""
        self._attention.initialize_cache(num_blocks)

    def block_copier(self) -> BlockCopier:
        """See `CopiesBlocks`."""
        return self._attention.block_copier()

    def forward(self, chunks: Sequence[SequenceChunk]) -> Tensor:
        """See `CausalLM`."""
        batch = self._batches.build(chunks)
        with self._attention.running(batch):
            hidden = self._body(**inputs(batch.token_ids, batch.positions))[0][0]
        return paddle.gather(hidden, batch.output_rows)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """See `CausalLM`."""
        return self._head(hidden.unsqueeze(0))[0]


def _register(name: str, attention: Any) -> None:
    from paddleformers.nn.attention.interface import AttentionInterface

    AttentionInterface.register(name, attention)


def _require_float32(fd_config: FDConfig) -> None:
    quantization, dtype = fd_config.model_config.quantization, current_platform().model_dtype
    if quantization is not None:
        raise CheckpointError(f"quantization: {quantization} is not allowed through PaddleFormers; leave it out")
    if fd_config.model_config.dtype != dtype:
        raise CheckpointError(
            f"dtype: {fd_config.model_config.dtype} is not allowed through PaddleFormers; leave it out"
        )
    if dtype != "float32":
        raise CheckpointError(
            f"model_impl: through PaddleFormers a model computes in float32, this platform in {dtype}"
        )


def _require_attention(name: str, layers: list[LayerAttention], fd_config: FDConfig) -> None:
    """Raises CheckpointError unless every layer attends over the paged cache, as much of it as was reserved."""
    hf_config, dtype = fd_config.model_config.hf_config, fd_config.cache_config.dtype
    expected = positive_int(hf_config, "num_hidden_layers")
    if len(layers) != expected:
        raise CheckpointError(
            f"config.json: {name} is not supported; {len(layers)} of its {expected} layers use the attention interface"
        )
    heads = {(each.sizes.num_heads, each.sizes.num_kv_heads) for each in layers}
    if len(heads) > 1:
        raise CheckpointError(f"config.json: {name} is not supported; its layers differ in their numbers of heads")
    needed = sum(each.sizes.num_kv_heads * (each.sizes.key_dim + each.sizes.value_dim) for each in layers)
    taken, reserved = needed * ELEMENT_BYTES[dtype], kv_bytes_per_token(hf_config, dtype)
    if taken != reserved:
        raise CheckpointError(
            f"config.json: {name} is not supported; its keys and values take {taken} bytes a token, and its sizes are "
            f"those of {reserved}"
        )
