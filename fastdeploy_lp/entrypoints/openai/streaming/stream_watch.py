"""Detection of streams whose clients do not read."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter

from fastdeploy_lp.engine.metrics import PREFIX

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5


class WatchedStream(Protocol):
    """A stream that is being sent to a client."""

    @property
    def blocked_since(self) -> float | None:
        """Time since which the client has read nothing, on the monotonic clock; None while it reads."""

    @property
    def unread_tokens(self) -> int:
        """Number of tokens that the client has not read."""

    @property
    def name(self) -> str:
        """The request's id."""

    def drop(self) -> None:
        """Ends the stream and its request."""


class StreamWatch:
    """Ends streams that are blocked for longer than `timeout` seconds, or with more than `max_unread` tokens waiting.

    Checks twice a second, only while streams exist. `timeout` 0 means no limit.
    """

    def __init__(
        self, timeout: float, max_unread: int, ended: Counter, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._timeout = timeout
        self._max_unread = max_unread
        self._ended = ended
        self._clock = clock
        self._streams: set[WatchedStream] = set()
        self._next_look: asyncio.TimerHandle | None = None

    def add(self, stream: WatchedStream) -> None:
        """Starts watching a stream."""
        self._streams.add(stream)
        if self._next_look is None:
            self._plan_look()

    def remove(self, stream: WatchedStream) -> None:
        """Stops watching a stream."""
        self._streams.discard(stream)
        if not self._streams and self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None

    def look(self) -> None:
        """Ends the streams that exceed a limit."""
        now = self._clock()
        for stream in list(self._streams):
            if stream.blocked_since is None:
                continue
            seconds, tokens = now - stream.blocked_since, stream.unread_tokens
            if tokens > self._max_unread or 0 < self._timeout < seconds:
                self._streams.discard(stream)
                self._ended.inc()
                logger.warning(
                    "request %s ended: its client has read nothing for %.1f s, and %d tokens wait for it",
                    stream.name,
                    seconds,
                    tokens,
                )
                stream.drop()

    def _plan_look(self) -> None:
        self._next_look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._next_look = None
        self.look()
        if self._streams:
            self._plan_look()


def stalled_streams(registry: CollectorRegistry) -> Counter:
    """Returns the counter of `StreamWatch`, registered in the server's metrics."""
    return Counter(
        f"{PREFIX}stream_stalled", "Streams that were ended because their clients did not read", registry=registry
    )
