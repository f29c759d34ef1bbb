"""The worker's scheduler, watched."""

from __future__ import annotations

from fastdeploy_lp.worker.scheduled import ScheduledChunk
from fastdeploy_lp.worker.scheduler import Scheduler


class NotingScheduler(Scheduler):
    """Keeps its last schedule; replaces the scheduler of an idle engine."""

    last: list[ScheduledChunk]

    def schedule(self) -> list[ScheduledChunk]:
        """As the scheduler does it."""
        self.last = super().schedule()
        return self.last
