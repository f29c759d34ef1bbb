"""The news that rows which steps have left out can go on."""

from __future__ import annotations

import threading
from collections.abc import Callable


class HeldRows:
    """Lets threads tell the one that runs steps that a row is no longer held."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._released = False
        self._call: Callable[[], None] = lambda: None

    @property
    def have_news(self) -> bool:
        """Whether a row was released since `take_news`."""
        return self._released

    def release(self) -> None:
        """A row that is held can go on; any thread may call this."""
        with self._changed:
            self._released = True
            self._changed.notify_all()
        self._call()

    def take_news(self) -> None:
        """All rows are about to be looked at."""
        self._released = False

    def wait(self) -> None:
        """Wait for news."""
        with self._changed:
            self._changed.wait_for(lambda: self._released)

    def on_release(self, call: Callable[[], None]) -> None:
        """Have this called at each release, in the thread that makes it."""
        self._call = call
