"""A second, smaller model of the same vocabulary that continues sequences greedily."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import paddle

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.model_executor.causal_lm import load_causal_lm
from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
from fastdeploy_lp.model_executor.models.registry import CausalLM, WarmsUp
from fastdeploy_lp.worker.drafters.pass_costs import measured_passes
from fastdeploy_lp.worker.drafters.step_costs import StepCosts


class GreedyModel:
    """The model, and its KV cache: a block for each block of the served model, and some private ones for each slot.

    fd_config: of this model. spare_blocks: private blocks of a slot.
    """

    def __init__(self, fd_config: FDConfig, model: CausalLM, spare_blocks: int) -> None:
        self.fd_config = fd_config
        self._model = model
        self._spare_blocks = spare_blocks
        self.num_blocks = 0

    @classmethod
    def of(cls, fd_config: FDConfig, *, show_progress: bool = False) -> GreedyModel | None:
        """Loads the draft model of a configuration; returns None without one.

        Raises CheckpointError (a ValueError) for a model that cannot be used.
        """
        settings = fd_config.scheduler_config.speculation
        if fd_config.draft_model_config is None or settings is None:
            return None
        own = replace(fd_config, model_config=fd_config.draft_model_config, draft_model_config=None)
        # The last drafted token is not computed.
        spare_blocks = -(-(settings.num_speculative_tokens - 1) // fd_config.cache_config.block_size)
        return cls(own, load_causal_lm(own, show_progress=show_progress), spare_blocks)

    @property
    def max_model_len(self) -> int:
        """Tokens that a sequence may have."""
        return self.fd_config.model_config.max_model_len

    def initialize_cache(self, num_blocks: int) -> None:
        """Allocates blocks for the `num_blocks` of the served model, the null block included, and the private ones."""
        self.num_blocks = num_blocks
        self._model.initialize_cache(num_blocks + self.fd_config.scheduler_config.max_num_seqs * self._spare_blocks)

    def spare(self, slot: int) -> range:
        """Returns the private blocks of a slot."""
        first = self.num_blocks + slot * self._spare_blocks
        return range(first, first + self._spare_blocks)

    def warmed_up(self) -> StepCosts:
        """Prepares the model for its first pass; returns the seconds of passes by their number of tokens."""
        slots = self.fd_config.scheduler_config.max_num_seqs
        if isinstance(self._model, WarmsUp):
            self._model.warm_up(slots)
        return measured_passes(self.fd_config, self._model, slots)

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def next_tokens(self, chunks: Sequence[SequenceChunk]) -> list[int]:
        """Computes the chunks; returns the most likely token after each output that they ask for, in their order."""
        hidden = self._model.forward(chunks)
        if not any(chunk.num_outputs for chunk in chunks):
            return []
        tokens: list[int] = paddle.argmax(self._model.compute_logits(hidden), axis=-1).astype("int64").numpy().tolist()
        return tokens
