"""Interface of model runners, and the result of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessorChain, SlotFailure
from fastdeploy_lp.logits_processor.chain.recorded_actions import SlotActions
from fastdeploy_lp.messages import PackedLogprobs, ShadowTokens, StageTrace, TokenLogprobs
from fastdeploy_lp.model_executor.block_copier import BlockCopier
from fastdeploy_lp.worker.drafters.drafter import Draft
from fastdeploy_lp.worker.held_rows import HeldRows
from fastdeploy_lp.worker.sequence import ScheduledChunk, Sequence


@dataclass(frozen=True)
class StepResult:
    """One token for each chunk that samples [rows], failures of requests by slot, and requested logprobs by slot.

    prompt_logprobs: one entry for each prompt token but the first, with a request's first token.
    pooled: for each chunk that pools, by slot, its prompt's vector [hidden_size].
    completed: the slots whose output is complete with this token.
    undecided: the slots whose output may be complete with this token, which a later step will know.
    overrun: the slots whose output was complete before this token, which they do not take.
    traces: by slot, the stages of a traced token. shadows: by slot, the tokens of shadow processors.
    actions: by slot, the actions of processors; a slot with a finish does not take its token.
    further: by slot, tokens that follow the slot's token of `tokens`, each after a draft token that was right.
    """

    tokens: NDArray[np.int64]
    failures: dict[int, SlotFailure]
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    prompt_logprobs: dict[int, PackedLogprobs] = field(default_factory=dict)
    pooled: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    completed: frozenset[int] = frozenset()
    undecided: frozenset[int] = frozenset()
    overrun: frozenset[int] = frozenset()
    traces: dict[int, list[StageTrace]] = field(default_factory=dict)
    shadows: dict[int, ShadowTokens] = field(default_factory=dict)
    actions: Mapping[int, SlotActions] = field(default_factory=dict)
    further: dict[int, list[int]] = field(default_factory=dict)


class ModelRunnerBase(ABC):
    """Runs steps: model, KV cache, chain and sampler. A platform names the class; `ModelRunner` is ours.

    Built as `cls(fd_config, chain)`, followed by `load_model`, once, and `initialize_cache`, once or, if memory is
    measured, first with few blocks and then with all.
    """

    def __init__(self, fd_config: FDConfig, chain: LogitsProcessorChain) -> None:
        self.fd_config = fd_config
        self.chain = chain
        self.held = HeldRows()

    @abstractmethod
    def load_model(self, *, show_progress: bool = False) -> None:
        """Reads the weights; raises ValueError for an unsuitable checkpoint."""

    @abstractmethod
    def initialize_cache(self, num_blocks: int) -> None:
        """Allocates the KV cache of `num_blocks` blocks, null block 0 included, replacing an existing cache."""

    def block_copier(self) -> BlockCopier | None:
        """Returns the function that copies a block of the KV cache, for the passes that follow; None by default.

        With it, sequences share prefixes to the token; without it, in whole blocks.
        """
        return None

    def warm_up(self) -> None:  # noqa: B027 - not abstract: most devices have nothing to do
        """Does preparation that needs the cache and should precede the first step; nothing by default."""

    @abstractmethod
    def enter(self, sequence: Sequence) -> None:
        """Registers a sequence in its slot."""

    @abstractmethod
    def leave(self, slot: int) -> None:
        """Clears a slot with its arguments and its processors' state."""

    def holds(self, slot: int) -> bool:  # noqa: ARG002
        """Returns True while no token of the slot can be sampled; `held` reports the change. False by default."""
        return False

    def drafts(self, sequences: Iterable[Sequence], tokens: int, room: int) -> Mapping[int, Draft]:  # noqa: ARG002
        """Returns drafts by slot for sequences that compute one token each in a step of `tokens` tokens.

        room: tokens that may be added to the step. None by default; a runner that returns drafts has `verify`.
        """
        return {}

    @property
    def computes_ahead(self) -> bool:
        """True if chunks may be marked with `goes_ahead`. False by default."""
        return False

    def verify(self, chunks: list[ScheduledChunk]) -> StepResult:
        """Samples the next token of chunks of the last `execute`, in ascending slot order, as a separate step would.

        Called in rounds: `accepted` draft tokens of each chunk were sampled so far, and at least one more is computed.
        `StepResult.further` may take sequences over several rounds at once. Raises NotImplementedError by default,
        which is for runners that return no drafts.
        """
        raise NotImplementedError(f"{type(self).__name__} returned drafts, and has no verify for {len(chunks)} of them")

    @abstractmethod
    def execute(self, chunks: list[ScheduledChunk]) -> StepResult:
        """Computes chunks in ascending slot order; samples one token for each that ends its sequence, or pools it.

        Row r of the logits is the r-th chunk that samples. A step without such chunks does not run chain and sampler.
        """
