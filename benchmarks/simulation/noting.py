"""The worker's scheduler, watched."""

from __future__ import annotations

from fastdeploy_lp.worker.scheduled import ScheduledChunk
from fastdeploy_lp.worker.scheduler import Scheduler


class NotingScheduler(Scheduler):
    """Keeps what it scheduled last; to be put in an idle engine's place of its own."""

    last: list[ScheduledChunk]

    def schedule(self) -> list[ScheduledChunk]:
        """As the scheduler does it."""
        self.last = super().schedule()
        return self.last
