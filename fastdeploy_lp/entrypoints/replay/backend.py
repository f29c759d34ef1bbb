"""What replays need of whoever runs the requests."""

from __future__ import annotations

from typing import Protocol

from fastdeploy_lp.engine.logged_request import LoggedOutput, LoggedRequest


class ReplayError(RuntimeError):
    """A request that cannot be run again; the message says why."""


class ReplayBackend(Protocol):
    """Runs requests."""

    async def outputs(self, request: LoggedRequest) -> list[LoggedOutput]:
        """The outputs of a recorded request, run anew; raises ReplayError."""
