"""What goes to the worker, and what waits until it can."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fastdeploy_lp.engine.waiting_queue import Message, WaitingQueue
from fastdeploy_lp.messages import SequenceStep


@dataclass(frozen=True)
class Sent:
    """A sequence that the worker has, as it was told of it, and whose it is."""

    message: Message
    client: str


class Outbox:
    """Sequences in flight: those that were sent and those that wait, because there is no worker or not their turn.

    limit: how many the worker has at a time; None for any number. The worker takes sequences in the order in
    which they are sent.
    """

    def __init__(self, send: Callable[[Message], None], queue: WaitingQueue, limit: int | None = None) -> None:
        self._send = send
        self._queue = queue
        self._limit = limit
        self._open = False
        self._sent: dict[str, Sent] = {}
        self._owners: dict[str, str] = {}
        self._held: Counter[str] = Counter()

    @property
    def is_open(self) -> bool:
        """Whether there is a worker that takes sequences."""
        return self._open

    @property
    def sent(self) -> list[str]:
        """The ids of the sequences that the worker has, or had when it ended, oldest first."""
        return list(self._sent)

    @property
    def num_waiting(self) -> int:
        """Sequences that were not sent yet."""
        return len(self._queue)

    def held_by(self, client: str) -> int:
        """Sequences of a client, sent or not."""
        return self._held[client]

    def open(self) -> None:
        """A worker is ready: it gets what the last one had, and then what waits."""
        self._open = True
        for sent in self._sent.values():
            self._send(sent.message)
        self._send_waiting()

    def close(self) -> None:
        """The worker is gone; what it had stays here."""
        self._open = False

    def add(self, message: Message, client: str) -> None:
        """Send a sequence as soon as it can be."""
        self._owners[message.request_id] = client
        self._held[client] += 1
        self._queue.push(message, client)
        self._send_waiting()

    def remove(self, names: Iterable[str]) -> list[str]:
        """Forget sequences that ended or that nobody waits for; gives those of them that the worker has."""
        known = []
        for name in names:
            owner = self._owners.pop(name, None)
            if owner is not None:
                self._held[owner] -= 1
                if not self._held[owner]:
                    del self._held[owner]
            if self._sent.pop(name, None) is None:
                self._queue.discard(name)
            elif self._open:
                known.append(name)
        self._send_waiting()
        return known

    def charge(self, steps: Iterable[SequenceStep]) -> None:
        """Sequences were given tokens, which count where clients take turns."""
        for step in steps:
            sent = self._sent.get(step.request_id)
            if sent is not None:
                self._queue.charge(sent.client, len(step.token_ids))

    def _send_waiting(self) -> None:
        while self._open and len(self._queue) and (self._limit is None or len(self._sent) < self._limit):
            message, client = self._queue.pop()
            self._sent[message.request_id] = Sent(message, client)
            self._send(message)
