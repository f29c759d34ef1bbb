"""Measurement of a model's passes."""

from __future__ import annotations

import numpy as np

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
from fastdeploy_lp.model_executor.models.registry import CausalLM
from fastdeploy_lp.worker.drafters.step_costs import StepCosts

# Beyond these, every further token costs the same.
MOST_TOKENS = 64
NULL_BLOCK = 0


def measured_passes(fd_config: FDConfig, model: CausalLM, most: int) -> StepCosts:
    """Returns the seconds of passes of up to `most` tokens with logits for each; the model's KV cache exists."""
    limits = (fd_config.scheduler_config.max_num_batched_tokens, fd_config.model_config.max_model_len, MOST_TOKENS)
    blocks = -(-fd_config.model_config.max_model_len // fd_config.cache_config.block_size)

    def run(tokens: int) -> None:
        # Writes to the null block only, which no sequence reads.
        table = np.full(blocks, NULL_BLOCK, np.int32)
        hidden = model.forward([SequenceChunk(np.zeros(tokens, np.int64), 0, table, tokens)])
        # The read waits for the device.
        model.compute_logits(hidden)[0, 0].numpy()

    return StepCosts.measured(run, min(most, *limits))
