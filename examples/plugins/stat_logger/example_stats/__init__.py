"""A stat logger as a plugin: installed beside a server, it writes to the file that EXAMPLE_STATS_FILE names."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

from fastdeploy_lp import FDConfig, StatLoggerBase
from fastdeploy_lp.stats import IterationStats, SchedulerStats


class CompletionLines(StatLoggerBase):
    """Writes one JSON object for each finished completion, and the processors' seconds with each batch of them."""

    def __init__(self, fd_config: FDConfig, engine_index: int = 0) -> None:
        self._path = Path(os.environ["EXAMPLE_STATS_FILE"])
        self._model = fd_config.model_config.served_model_name
        self._lines: list[str] = []
        self._last = SchedulerStats()

    def record(
        self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None, engine_idx: int = 0
    ) -> None:
        """Called at every step: slow work is left to `log`."""
        self._last = scheduler_stats or self._last
        for finished in iteration_stats.finished_requests if iteration_stats else ():
            self._lines.append(json.dumps({"model": self._model, **dataclasses.asdict(finished)}))

    def log(self) -> None:
        """Writes the collected lines."""
        if not self._lines:
            return
        seconds = {each.name: each.seconds for each in self._last.processors}
        self._lines.append(json.dumps({"model": self._model, "processor_seconds": seconds}))
        with self._path.open("a") as file:
            file.write("".join(f"{line}\n" for line in self._lines))
        self._lines.clear()

    def log_engine_initialized(self) -> None:
        """Adds a first line."""
        self._lines.append(json.dumps({"model": self._model, "ready": True}))
