"""The interface between a replay and the backend that runs its requests."""

from __future__ import annotations

from typing import Protocol

from fastdeploy_lp.engine.logged_request import LoggedOutput, LoggedRequest


class ReplayError(RuntimeError):
    """A request that cannot be run again; the message states the reason."""


class ReplayBackend(Protocol):
    """Runs requests."""

    async def outputs(self, request: LoggedRequest) -> list[LoggedOutput]:
        """Runs a recorded request again and returns its outputs; raises ReplayError."""
