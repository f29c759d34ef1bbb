"""The worker and the model runner: imported in the worker process alone."""

from __future__ import annotations

import logging

from fastdeploy_lp.worker.model_runner import ModelRunner
from fastdeploy_lp.worker.model_runner_base import StepResult
from fastdeploy_lp.worker.scheduled import ScheduledChunk
from fastdeploy_lp.worker.worker import Worker

logger = logging.getLogger(__name__)

CACHE_BYTES = 1 << 20


class ExampleWorker(Worker):
    """Has a mebibyte for keys and values, whatever the machine has."""

    def determine_available_memory(self) -> int:
        """A real device would compute its largest step here and see what is left."""
        return CACHE_BYTES

    def compile_or_warm_up_model(self) -> None:
        """A real device would capture its graphs here."""
        logger.warning("the example worker is warm")


class ExampleModelRunner(ModelRunner):
    """Tells of its first step."""

    told = False

    def execute(self, chunks: list[ScheduledChunk]) -> StepResult:
        """The step as always."""
        if not self.told:
            logger.warning("the example model runner takes its first step")
            self.told = True
        return super().execute(chunks)
