"""Worker interface of the engine core, and the start of a worker: the only place that makes the start-up calls."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessorChain
from fastdeploy_lp.platforms import current_platform
from fastdeploy_lp.plugins import load_class
from fastdeploy_lp.worker.drafters.drafter import Draft
from fastdeploy_lp.worker.kv_cache_spec import KVCacheSpec
from fastdeploy_lp.worker.model_runner_base import ModelRunnerBase, StepResult
from fastdeploy_lp.worker.sequence import ScheduledChunk, Sequence

logger = logging.getLogger(__name__)

WORKERS = {
    "default": "fastdeploy_lp.worker.worker:Worker",
    "profiling": "fastdeploy_lp.worker.profiling_worker:ProfilingWorker",
}


class WorkerBase(ABC):
    """One device and the model on it. `start_worker` makes the calls of the start, each once, in this order:

    `init_device`, `load_model`, `get_kv_cache_spec`, `determine_available_memory`, `initialize_cache`,
    `compile_or_warm_up_model`. A platform names the class; `fastdeploy_lp.worker.worker:Worker` is ours.

    model_runner: runs the steps, set by `init_device`. build_chain: returns its chain; the processors may put tensors
    on the device, so it is called once the device is set.
    """

    model_runner: ModelRunnerBase

    def __init__(
        self, fd_config: FDConfig, build_chain: Callable[[], LogitsProcessorChain], *, show_progress: bool = False
    ) -> None:
        self.fd_config = fd_config
        self.build_chain = build_chain
        self.show_progress = show_progress

    @abstractmethod
    def init_device(self) -> None:
        """Prepares the device, then sets `model_runner` with the chain."""

    @abstractmethod
    def load_model(self) -> None:
        """Loads the weights to the device; raises ValueError for an unsuitable checkpoint."""

    @abstractmethod
    def get_kv_cache_spec(self) -> KVCacheSpec:
        """Returns the memory layout of one KV-cache block."""

    @abstractmethod
    def determine_available_memory(self) -> int:
        """Returns the bytes available for the KV cache once the model is loaded."""

    @abstractmethod
    def initialize_cache(self, num_blocks: int) -> None:
        """Allocates the KV cache of `num_blocks` blocks, the null block 0 included."""

    def compile_or_warm_up_model(self) -> None:  # noqa: B027 - not abstract: most devices have nothing to do
        """Does preparation that should precede the first request, such as capturing graphs; nothing by default."""

    def enter(self, sequence: Sequence) -> None:
        """Registers a sequence in `sequence.slot`."""
        self.model_runner.enter(sequence)

    def leave(self, slot: int) -> None:
        """Clears a slot."""
        self.model_runner.leave(slot)

    def holds(self, slot: int) -> bool:
        """Returns True while no token of the slot can be sampled."""
        return self.model_runner.holds(slot)

    def drafts(self, sequences: Iterable[Sequence], tokens: int, room: int) -> Mapping[int, Draft]:
        """Returns draft tokens for the next step; see `ModelRunnerBase.drafts`."""
        return self.model_runner.drafts(sequences, tokens, room)

    @property
    def computes_ahead(self) -> bool:
        """See `ModelRunnerBase.computes_ahead`."""
        return self.model_runner.computes_ahead

    def execute_model(self, chunks: list[ScheduledChunk]) -> StepResult:
        """Runs one step; see `ModelRunnerBase.execute`."""
        return self.model_runner.execute(chunks)

    def verify(self, chunks: list[ScheduledChunk]) -> StepResult:
        """Samples the next token of chunks with drafts; see `ModelRunnerBase.verify`."""
        return self.model_runner.verify(chunks)


def start_worker(
    fd_config: FDConfig, build_chain: Callable[[], LogitsProcessorChain], *, show_progress: bool = False
) -> tuple[WorkerBase, FDConfig]:
    """Starts a worker of the configured class, or else the platform's, and returns it with the settled configuration.

    The returned configuration has the cache's actual number of blocks: the settled number, or fewer if the worker has
    less memory. Raises ValueError for a name that is no worker class, and for memory or a number of blocks that does
    not hold one sequence of full length, which must be able to run alone.
    """
    worker = _worker_class(fd_config)(fd_config, build_chain, show_progress=show_progress)
    worker.init_device()
    worker.load_model()
    settled = _with_blocks(fd_config, worker.get_kv_cache_spec(), worker.determine_available_memory())
    worker.initialize_cache(settled.cache_config.num_blocks)
    worker.compile_or_warm_up_model()
    platform, cache = current_platform(), settled.cache_config
    where = f"platform {platform.name}: {platform.device_name}"
    logger.debug(
        "%s on %s, %d blocks of %d tokens", type(worker).__qualname__, where, cache.num_blocks, cache.block_size
    )
    return worker, settled


def _worker_class(fd_config: FDConfig) -> type[WorkerBase]:
    platform = current_platform()
    name = fd_config.device_config.worker_class or platform.get_worker_class()
    try:
        return load_class(WORKERS.get(name, name), WorkerBase)
    except ValueError as error:
        raise ValueError(f"worker of platform {platform.name}: {error}") from error


def _with_blocks(fd_config: FDConfig, spec: KVCacheSpec, available: int) -> FDConfig:
    cache, length = fd_config.cache_config, fd_config.model_config.max_model_len
    num_blocks = min(cache.num_blocks, available // spec.bytes_per_block)
    if (num_blocks - 1) * cache.block_size < length:
        raise ValueError(
            f"num_blocks: {num_blocks} blocks of {cache.block_size} tokens, one of them unused, "
            f"do not hold one sequence of max_model_len = {length} tokens"
        )
    return replace(fd_config, cache_config=replace(cache, num_blocks=num_blocks))
