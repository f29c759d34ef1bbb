"""What a model runner is to its worker, and what a step gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessorChain, SlotFailure
from fastdeploy_lp.messages import PackedLogprobs, ShadowTokens, StageTrace, TokenLogprobs
from fastdeploy_lp.worker.held_rows import HeldRows
from fastdeploy_lp.worker.scheduled import ScheduledChunk
from fastdeploy_lp.worker.sequence import Sequence


@dataclass(frozen=True)
class StepResult:
    """One token for each chunk that samples [rows], whose requests have to end, and by slot the logprobs asked for.

    prompt_logprobs: one entry for each prompt token but the first, with a request's first token.
    pooled: for each chunk that pools, by slot, its prompt's vector [hidden_size].
    completed: the slots whose output is whole with this token.
    traces: by slot, the stages of a token that is traced. shadows: by slot, the tokens of processors in shadow.
    """

    tokens: NDArray[np.int64]
    failures: dict[int, SlotFailure]
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    prompt_logprobs: dict[int, PackedLogprobs] = field(default_factory=dict)
    pooled: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    completed: frozenset[int] = frozenset()
    traces: dict[int, list[StageTrace]] = field(default_factory=dict)
    shadows: dict[int, ShadowTokens] = field(default_factory=dict)


class ModelRunnerBase(ABC):
    """Runs steps: model, KV cache, chain and sampler. A platform names the class; `ModelRunner` is ours.

    Built as `cls(fd_config, chain)`; then come `load_model`, once, and `initialize_cache`, once or, where memory is
    measured, first with few blocks and then with all.
    """

    def __init__(self, fd_config: FDConfig, chain: LogitsProcessorChain) -> None:
        self.fd_config = fd_config
        self.chain = chain
        self.held = HeldRows()

    @abstractmethod
    def load_model(self, *, show_progress: bool = False) -> None:
        """Read the weights; raises ValueError for a checkpoint that does not fit."""

    @abstractmethod
    def initialize_cache(self, num_blocks: int) -> None:
        """Allocate the KV cache: `num_blocks` blocks, the null block 0 included, in place of a cache that is there."""

    def warm_up(self) -> None:  # noqa: B027 - not abstract: most devices have nothing to do
        """Whatever is better done before the first step, the cache being there; nothing by default."""

    @abstractmethod
    def enter(self, sequence: Sequence) -> None:
        """A sequence takes its slot."""

    @abstractmethod
    def leave(self, slot: int) -> None:
        """A slot is empty again, its arguments and its processors' state with it."""

    def holds(self, slot: int) -> bool:  # noqa: ARG002
        """True while no token of the slot can be sampled; `held` tells when that has changed. Never by default."""
        return False

    @abstractmethod
    def execute(self, chunks: list[ScheduledChunk]) -> StepResult:
        """Compute chunks, given in ascending slot order; sample one token for each that ends its sequence, or pool.

        Row r of the logits is the r-th chunk that samples. A step in which none does leaves chain and sampler alone.
        """
