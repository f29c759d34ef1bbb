"""The worker and the model runner: imported only in the worker process."""

from __future__ import annotations

import logging

from fastdeploy_lp.worker.model_runner import ModelRunner
from fastdeploy_lp.worker.model_runner_base import StepResult
from fastdeploy_lp.worker.scheduled import ScheduledChunk
from fastdeploy_lp.worker.worker import Worker

logger = logging.getLogger(__name__)

CACHE_BYTES = 1 << 20


class ExampleWorker(Worker):
    """Uses one mebibyte for keys and values on any machine."""

    def determine_available_memory(self) -> int:
        """Returns a constant; a real device would run its largest step here and measure the remaining memory."""
        return CACHE_BYTES

    def compile_or_warm_up_model(self) -> None:
        """A real device would capture its graphs here."""
        logger.warning("the example worker is warm")


class ExampleModelRunner(ModelRunner):
    """Logs its first step."""

    told = False

    def execute(self, chunks: list[ScheduledChunk]) -> StepResult:
        """Runs the step as usual."""
        if not self.told:
            logger.warning("the example model runner takes its first step")
            self.told = True
        return super().execute(chunks)
