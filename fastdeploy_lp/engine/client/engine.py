"""The engine interface that entry points use, with one worker or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.engine.client.generation import Generation
from fastdeploy_lp.engine.client.pooling import Pooling
from fastdeploy_lp.engine.client.processor_states import ProcessorStates
from fastdeploy_lp.engine.client.request_log import RequestLog
from fastdeploy_lp.engine.helpers.template_sandbox import TemplateSandbox
from fastdeploy_lp.engine.message_parser import MessageParsers
from fastdeploy_lp.engine.prepare.input_processor import EngineRequest, InputProcessor
from fastdeploy_lp.engine.prepare.preparation import HostThreads, RequestPreparation
from fastdeploy_lp.engine.tokenizer import Tokenizer


@dataclass(frozen=True)
class EngineLoad:
    """Numbers of sequences with a slot and of sequences waiting for one."""

    running: int = 0
    waiting: int = 0


class EngineMetrics(Protocol):
    """Holder of an engine's Prometheus metrics."""

    registry: CollectorRegistry


class Engine(Protocol):
    """Takes requests and returns deltas; used from one event loop."""

    fd_config: FDConfig
    preparation: RequestPreparation
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
        """Running and waiting sequences."""

    @property
    def worker_pid(self) -> int | None:
        """The process id of the worker or of the first worker; None without one."""

    async def start(self) -> None:
        """Starts the workers and waits until they are ready; raises EngineStartError."""

    def require_started(self) -> None:
        """Raises EngineStartingError until the first start is complete."""

    def require_alive(self) -> None:
        """Raises EngineStartingError, EngineDeadError or EngineDrainingError while no requests are accepted."""

    def require_ready(self) -> None:
        """Raises as `require_alive` does, and EngineRestartingError while no worker is ready."""

    def require_room(self, count: int, client: str) -> None:
        """Raises as `require_alive` does, and QueueFullError unless `count` more sequences fit."""

    async def generate(
        self, requests: Sequence[EngineRequest], *, stream: bool = False, bounded: bool = True
    ) -> list[Generation]:
        """Accepts requests, all of them or none; raises as `require_alive` does.

        Raises ProcessorUnavailableError for a logits processor in quarantine and, if `bounded`, QueueFullError.
        """

    async def pool(self, requests: Sequence[EngineRequest], *, bounded: bool = True) -> list[Pooling]:
        """Accepts prompts to pool, all of them or none; raises as `generate` does, and ValueError for other prompts."""

    async def reset_processor(self, name: str) -> None:
        """Returns a quarantined logits processor to service; raises KeyError for a name that is not declared."""

    async def drain(self) -> None:
        """Stops accepting requests and waits until the requests in flight have ended."""

    async def wait_dead(self) -> str:
        """Waits until no worker is left and none will follow; returns the cause."""

    def end_requests(self, reason: str) -> None:
        """Ends every request in flight with EngineDeadError, and accepts no more."""

    async def shutdown(self) -> None:
        """Ends the engine; requests still in flight end with EngineDeadError."""
