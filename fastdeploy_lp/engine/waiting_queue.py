"""Queues of sequences for the worker: by arrival, or fair among clients."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from fastdeploy_lp.messages import AddRequest


class WaitingQueue(Protocol):
    """Sequences not yet sent to the worker, by id."""

    def __len__(self) -> int:
        """Returns the number of sequences."""

    def push(self, message: AddRequest, client: str) -> None:
        """Adds a sequence of a client."""

    def pop(self, held_back: Collection[str] = ()) -> tuple[AddRequest, str]:
        """Removes and returns the next sequence with its client, skipping clients in `held_back`.

        Raises KeyError if there is none.
        """

    def discard(self, name: str) -> None:
        """Removes a sequence if it is in the queue."""

    def charge(self, client: str, tokens: int) -> None:
        """Charges a client for tokens."""


class ArrivalQueue:
    """First come, first served."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[AddRequest, str]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, message: AddRequest, client: str) -> None:
        """Adds a sequence of a client."""
        self._waiting[message.request_id] = message, client

    def pop(self, held_back: Collection[str] = ()) -> tuple[AddRequest, str]:
        """Removes and returns the oldest sequence; raises KeyError if there is none."""
        for name, (_, client) in self._waiting.items():
            if client not in held_back:
                return self._waiting.pop(name)
        raise KeyError("nobody waits")

    def discard(self, name: str) -> None:
        """Removes a sequence if it is in the queue."""
        self._waiting.pop(name, None)

    def charge(self, client: str, tokens: int) -> None:
        """Does nothing: tokens do not matter here."""


class FairQueue:
    """Serves the oldest sequence of the client with the fewest tokens.

    Prompt tokens sent to the worker and generated tokens count. A returning client starts at the minimum of the waiting
    clients; idling earns no credit. Among equals, the client that has waited longer is first.
    """

    def __init__(self) -> None:
        # Clients in the order in which they began to wait.
        self._waiting: dict[str, dict[str, AddRequest]] = {}
        self._tokens: dict[str, int] = {}
        self._owners: dict[str, str] = {}
        self._last_left: str | None = None

    def __len__(self) -> int:
        return len(self._owners)

    def push(self, message: AddRequest, client: str) -> None:
        """Adds a sequence of a client."""
        if client not in self._waiting:
            self._tokens[client] = max(self._tokens.get(client, 0), self._floor())
            self._waiting[client] = {}
        self._waiting[client][message.request_id] = message
        self._owners[message.request_id] = client

    def pop(self, held_back: Collection[str] = ()) -> tuple[AddRequest, str]:
        """Removes and returns the next sequence with its client, skipping clients in `held_back`.

        Raises KeyError if there is none.
        """
        clients = [client for client in self._waiting if client not in held_back]
        if not clients:
            raise KeyError("nobody waits")
        client = min(clients, key=self._tokens.__getitem__)
        name = next(iter(self._waiting[client]))
        message = self._waiting[client][name]
        self.discard(name)
        self.charge(client, len(message.prompt_token_ids))
        return message, client

    def discard(self, name: str) -> None:
        """Removes a sequence if it is in the queue."""
        client = self._owners.pop(name, None)
        if client is None:
            return
        del self._waiting[client][name]
        if not self._waiting[client]:
            del self._waiting[client]
            self._last_left = client

    def charge(self, client: str, tokens: int) -> None:
        """Adds tokens to the client's count."""
        self._tokens[client] += tokens

    def _floor(self) -> int:
        if self._waiting:
            return min(self._tokens[client] for client in self._waiting)
        return 0 if self._last_left is None else self._tokens[self._last_left]
