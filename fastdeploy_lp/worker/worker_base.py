"""Worker interface of the engine core: the start-up calls in order, and the calls of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessorChain
from fastdeploy_lp.worker.kv_cache_spec import KVCacheSpec
from fastdeploy_lp.worker.model_runner_base import ModelRunnerBase, StepResult
from fastdeploy_lp.worker.scheduled import ScheduledChunk
from fastdeploy_lp.worker.sequence import Sequence


class WorkerBase(ABC):
    """One device and the model on it. `worker/start_up.py` makes the calls of the start, each once, in this order:

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

    def execute_model(self, chunks: list[ScheduledChunk]) -> StepResult:
        """Runs one step; see `ModelRunnerBase.execute`."""
        return self.model_runner.execute(chunks)
