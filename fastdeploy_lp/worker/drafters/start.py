"""Builds the drafters of a configuration, and measures the model that verifies."""

from __future__ import annotations

import numpy as np

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.config.speculation import Speculation
from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
from fastdeploy_lp.model_executor.models.registry import CausalLM
from fastdeploy_lp.plugins import load_class
from fastdeploy_lp.worker.drafters.drafter import Drafter
from fastdeploy_lp.worker.drafters.drafting import Drafting
from fastdeploy_lp.worker.drafters.grammar import GrammarDrafter
from fastdeploy_lp.worker.drafters.ngram import NgramDrafter
from fastdeploy_lp.worker.drafters.step_costs import StepCosts
from fastdeploy_lp.worker.logits_mask import LogitsMask

# Beyond these, every further token costs the same.
MOST_TOKENS = 64
NULL_BLOCK = 0


def new_drafting(fd_config: FDConfig, settings: Speculation, model: CausalLM, mask: LogitsMask) -> Drafting:
    """Returns the drafting of these settings; the model's KV cache exists.

    Raises ValueError for a `method` that names no drafter.
    """
    drafters: list[Drafter] = []
    if settings.names_class:
        drafters.append(load_class(settings.method, Drafter)(fd_config))
    if settings.follows_grammars:
        drafters.append(GrammarDrafter(mask))
    if settings.looks_up:
        drafters.append(NgramDrafter(settings))
    return Drafting(settings, drafters, _costs(fd_config, settings, model))


def _costs(fd_config: FDConfig, settings: Speculation, model: CausalLM) -> StepCosts:
    scheduler = fd_config.scheduler_config
    most = scheduler.max_num_seqs * (1 + settings.num_speculative_tokens)
    limits = (scheduler.max_num_batched_tokens, fd_config.model_config.max_model_len, MOST_TOKENS)
    blocks = -(-fd_config.model_config.max_model_len // fd_config.cache_config.block_size)

    def run(tokens: int) -> None:
        # Writes to the null block only, which no sequence reads.
        table = np.full(blocks, NULL_BLOCK, np.int32)
        hidden = model.forward([SequenceChunk(np.zeros(tokens, np.int64), 0, table, tokens)])
        # The read waits for the device.
        model.compute_logits(hidden)[0, 0].numpy()

    return StepCosts.measured(run, min(most, *limits))
