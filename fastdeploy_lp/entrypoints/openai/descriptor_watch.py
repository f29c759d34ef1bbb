"""Detection of a shortage of file descriptors, which listeners do not report."""

from __future__ import annotations

import logging
import resource

from fastdeploy_lp.entrypoints.openai.connection_bounds import ConnectionBounds, files_are_left

logger = logging.getLogger(__name__)

# Idle connections to close at each check that finds no free descriptor.
GIVE_WAY = 32


class DescriptorWatch:
    """Logs the beginning and the end of a shortage, and closes idle connections while it lasts."""

    def __init__(self, bounds: ConnectionBounds) -> None:
        self._bounds = bounds
        self._short = False

    def look(self) -> None:
        """Checks that one more file can be opened."""
        short = not files_are_left()
        if short:
            self._bounds.make_room(GIVE_WAY)
        if short == self._short:
            return
        self._short = short
        if short:
            fields = {"files_allowed": resource.getrlimit(resource.RLIMIT_NOFILE)[0]}
            logger.error("no file can be opened: new connections are refused", extra={"fields": fields})
        else:
            logger.warning("files can be opened again")
