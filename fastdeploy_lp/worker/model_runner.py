"""Runs one step: share_inputs → chain state → forward → logits → chain → sampler → tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
from numpy.typing import NDArray

from fastdeploy_lp.checkpoint.files import read_model_files
from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessorChain
from fastdeploy_lp.model_executor.forward_batch import ForwardBatchBuilder, SequenceChunk
from fastdeploy_lp.model_executor.kv_cache import LayerKVCache
from fastdeploy_lp.model_executor.loader.weights import open_weights
from fastdeploy_lp.model_executor.models.dimensions import Dimensions
from fastdeploy_lp.model_executor.models.registry import CausalLM, model_class
from fastdeploy_lp.worker.sampler import Sampler
from fastdeploy_lp.worker.sequence import Sequence
from fastdeploy_lp.worker.share_inputs import ShareInputs


class ModelRunner:
    """Owns the model, its KV cache, `share_inputs`, the chain and the sampler."""

    def __init__(self, fd_config: FDConfig, chain: LogitsProcessorChain, *, show_progress: bool = False) -> None:
        dims = Dimensions.from_hf_config(fd_config.model_config.hf_config)
        self.chain = chain
        self.share_inputs = ShareInputs(fd_config.scheduler_config.max_num_seqs, fd_config.model_config.max_model_len)
        self._sampler = Sampler()
        self._batches = ForwardBatchBuilder(dims.num_heads, dims.num_kv_heads, fd_config.cache_config.block_size)
        self._model = _load_model(fd_config, dims, show_progress=show_progress)

    def execute(self, sequences: list[Sequence]) -> NDArray[np.int64]:
        """Sample one token for each sequence, given in ascending slot order: tokens [rows]."""
        slots = np.array([sequence.slot for sequence in sequences])
        self.share_inputs.set_active(slots)
        self.chain.update_state(self.share_inputs)
        batch = self._batches.build([_chunk(sequence) for sequence in sequences])
        logits = self._model.compute_logits(self._model.forward(batch))
        all_greedy = not self.share_inputs["temperature_cpu"][slots].any()
        logits = self.chain.apply(logits, all_greedy=all_greedy)
        # The one read of device data in a step.
        tokens: NDArray[np.int64] = self._sampler(logits, self.share_inputs, slots).numpy()
        self.share_inputs.append_tokens(slots, tokens)
        for sequence in sequences:
            sequence.num_computed = sequence.num_tokens
        return tokens


def _chunk(sequence: Sequence) -> SequenceChunk:
    return SequenceChunk(
        token_ids=np.array(sequence.uncomputed_token_ids),
        start=sequence.num_computed,
        block_table=np.array(sequence.block_table),
    )


def _load_model(fd_config: FDConfig, dims: Dimensions, *, show_progress: bool) -> CausalLM:
    config, cache = fd_config.model_config, fd_config.cache_config
    cls = model_class(config.hf_config)
    caches = [
        LayerKVCache(cache.num_blocks, dims.num_kv_heads, cache.block_size, dims.head_dim, config.dtype)
        for _ in range(dims.num_layers)
    ]
    files = read_model_files(Path(config.directory), need_tokenizer=False).weights
    with paddle.no_grad(), open_weights(files, config.dtype, show_progress=show_progress) as weights:
        model = cls(config, weights, caches)
        weights.require_all_taken()
    return model
