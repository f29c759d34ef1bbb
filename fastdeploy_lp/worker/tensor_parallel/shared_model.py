"""A model shared by several ranks, for the first rank's model runner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from paddle import Tensor

from fastdeploy_lp.checkpoint.errors import CheckpointError
from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.model_executor.block_copier import BlockCopier
from fastdeploy_lp.model_executor.causal_lm import load_causal_lm
from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
from fastdeploy_lp.model_executor.models.registry import CausalLM, CopiesBlocks, WarmsUp
from fastdeploy_lp.model_executor.parallel.communicator import Communicator
from fastdeploy_lp.platforms import current_platform
from fastdeploy_lp.plugins import load_class
from fastdeploy_lp.worker.tensor_parallel.commands import (
    Command,
    ComputeLogits,
    CopyBlock,
    Forward,
    InitializeCache,
    PackedChunk,
    WarmUp,
)
from fastdeploy_lp.worker.tensor_parallel.ranks import Ranks

COMMUNICATORS = {"paddle": "fastdeploy_lp.model_executor.parallel.paddle_communicator:PaddleCommunicator"}


def open_model(fd_config: FDConfig, *, show_progress: bool = False) -> CausalLM:
    """Returns this worker's model: in this process, or shared with ranks that were started and have loaded it.

    Raises CheckpointError (a ValueError) for a model that is unusable on any rank, and RankLostError for a rank that
    ends.
    """
    if fd_config.parallel_config.tensor_parallel_size == 1:
        return load_causal_lm(fd_config, show_progress=show_progress)
    platform = current_platform()
    name = fd_config.device_config.communicator_class or platform.get_communicator_class()
    if name is None:
        raise ValueError(f"tensor_parallel_size: platform {platform.name} has no communicator; allowed is 1")
    name = COMMUNICATORS.get(name, name)
    ranks = Ranks(fd_config, name)
    with _telling_of_a_lost_rank(ranks):
        communicator: Communicator = load_class(name, Communicator)(ranks.place)
    model = load_causal_lm(fd_config, communicator=communicator, show_progress=show_progress)
    with _telling_of_a_lost_rank(ranks):
        ranks.wait_until_loaded()
    return SharedModel(model, ranks, communicator)


class SharedModel:
    """A `CausalLM` whose calls run on every rank: directly in this process, by command in the others.

    Hidden states are the same on all ranks; logits are gathered here.
    """

    def __init__(self, model: CausalLM, ranks: Ranks, communicator: Communicator) -> None:
        self._model = model
        self._ranks = ranks
        self._communicator = communicator

    def initialize_cache(self, num_blocks: int) -> None:
        """See `CausalLM`."""
        with self._all_ranks(InitializeCache(num_blocks)):
            self._model.initialize_cache(num_blocks)

    def warm_up(self, max_num_seqs: int) -> None:
        """See `WarmsUp`."""
        with self._all_ranks(WarmUp(max_num_seqs)):
            if isinstance(self._model, WarmsUp):
                self._model.warm_up(max_num_seqs)

    def block_copier(self) -> BlockCopier | None:
        """See `CopiesBlocks`."""
        copy = self._model.block_copier() if isinstance(self._model, CopiesBlocks) else None
        return None if copy is None else partial(self._copy_block, copy)

    def _copy_block(self, copy: BlockCopier, source: int, target: int) -> None:
        with self._all_ranks(CopyBlock(source, target)):
            copy(source, target)

    def forward(self, chunks: Sequence[SequenceChunk]) -> Tensor:
        """See `CausalLM`."""
        with self._all_ranks(Forward([PackedChunk.of(chunk) for chunk in chunks])):
            return self._model.forward(chunks)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """See `CausalLM`. Sends the hidden states along, since chain and prompt logprobs choose their rows."""
        with self._all_ranks(ComputeLogits(list(hidden.shape))):
            self._communicator.broadcast(hidden)
            return self._model.compute_logits(hidden)

    @contextmanager
    def _all_ranks(self, command: Command) -> Iterator[None]:
        with _telling_of_a_lost_rank(self._ranks):
            self._ranks.tell(command)
            yield


@contextmanager
def _telling_of_a_lost_rank(ranks: Ranks) -> Iterator[None]:
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        ranks.raise_if_lost(error)
        raise
