"""Notification that rows which steps have left out can run again."""

from __future__ import annotations

import threading
from collections.abc import Callable


class HeldRows:
    """Notifies the thread that runs steps of rows that are no longer held.

    `have_news` is True if a row was released since `take_news`.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.have_news = False
        self._call: Callable[[], None] = lambda: None

    def release(self) -> None:
        """Reports that a held row can run again; any thread may call this."""
        with self._changed:
            self.have_news = True
            self._changed.notify_all()
        self._call()

    def take_news(self) -> None:
        """Clears the news; the caller checks all rows afterwards."""
        self.have_news = False

    def wait(self) -> None:
        """Waits for news."""
        with self._changed:
            self._changed.wait_for(lambda: self.have_news)

    def on_release(self, call: Callable[[], None]) -> None:
        """Sets a callback for each release; it runs in the releasing thread."""
        self._call = call
