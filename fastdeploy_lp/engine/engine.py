"""What entry points know of an engine, whether one worker runs it or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.engine.generation import Generation
from fastdeploy_lp.engine.host_threads import HostThreads, Run, run_here
from fastdeploy_lp.engine.input_processor import InputProcessor, Prompt, Settled
from fastdeploy_lp.engine.message_parser import MessageParsers
from fastdeploy_lp.engine.pooling import Pooling, PoolingRequest
from fastdeploy_lp.engine.processor_states import ProcessorStates
from fastdeploy_lp.engine.request_log import RequestLog
from fastdeploy_lp.engine.template_sandbox import TemplateSandbox
from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.sampling_params import SamplingParams


@dataclass(frozen=True)
class EngineRequest:
    """A prompt to be continued, with parameters that `Engine.settle` has settled.

    client: who shares with others, where clients take turns. deadline: on the monotonic clock, None for any time.
    """

    request_id: str
    prompt: Prompt
    settled: Settled
    client: str = ""
    deadline: float | None = None

    @property
    def num_sequences(self) -> int:
        """Completions of the prompt."""
        return self.settled.params.n


@dataclass(frozen=True)
class EngineLoad:
    """How many sequences have a slot, and how many wait for one."""

    running: int = 0
    waiting: int = 0


class EngineMetrics(Protocol):
    """Where an engine's Prometheus metrics are."""

    registry: CollectorRegistry


class Engine(Protocol):
    """Requests in, deltas out; lives on one event loop."""

    fd_config: FDConfig
    tokenizer: Tokenizer
    message_parsers: MessageParsers
    inputs: InputProcessor
    request_templates: TemplateSandbox
    host: HostThreads
    request_log: RequestLog | None

    @property
    def processors(self) -> ProcessorStates:
        """The declared logits processors and their counters."""

    @property
    def metrics(self) -> EngineMetrics:
        """Prometheus metrics."""

    @property
    def load(self) -> EngineLoad:
        """Sequences that run and wait."""

    @property
    def worker_pid(self) -> int | None:
        """The worker's process id, or the first worker's; None without one."""

    async def start(self) -> None:
        """Start what computes and wait until it is ready; raises EngineStartError."""

    def require_started(self) -> None:
        """Raise EngineStartingError before the first start is over."""

    def require_alive(self) -> None:
        """Raise what says that no request is taken: EngineStartingError, EngineDeadError or EngineDrainingError."""

    def require_ready(self) -> None:
        """Raise as `require_alive` does, and EngineRestartingError while there is no worker."""

    async def settle(self, params: SamplingParams, prompt: Prompt, client: str = "") -> Settled:
        """What `inputs.settle` gives, with a grammar that can be used.

        Clients take turns at compiling grammars. Raises InvalidRequestError, ProcessorUnavailableError, QueueFullError.
        """

    async def settle_each(
        self, params: SamplingParams, prompts: Sequence[Prompt], client: str = "", inside: Run = run_here
    ) -> list[Settled]:
        """The same for all prompts of a request, which is checked once; `inside` runs the steps of the check."""

    def require_room(self, count: int, client: str) -> None:
        """Raise as `require_alive` does, and QueueFullError unless so many further sequences have room."""

    async def generate(
        self, requests: Sequence[EngineRequest], *, stream: bool = False, bounded: bool = True
    ) -> list[Generation]:
        """Take requests, all of them or none; raises as `require_alive` does.

        Raises ProcessorUnavailableError for a logits processor in quarantine and, if `bounded`, QueueFullError.
        """

    async def pool(self, requests: Sequence[PoolingRequest], *, bounded: bool = True) -> list[Pooling]:
        """Take prompts that are pooled, all of them or none; raises as `generate` does."""

    async def reset_processor(self, name: str) -> None:
        """Put a quarantined logits processor back into service; raises KeyError for a name that is not declared."""

    async def drain(self) -> None:
        """Take no further requests, and wait until those in flight have ended."""

    async def wait_dead(self) -> str:
        """Wait until no worker is left and none will follow; gives the cause."""

    def end_requests(self, reason: str) -> None:
        """End every request in flight with EngineDeadError, and take no further ones."""

    async def shutdown(self) -> None:
        """End all of it; requests still in flight end with EngineDeadError."""
