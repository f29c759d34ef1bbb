"""Who is sent to the worker next: in order of arrival, or in turns of the clients."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from fastdeploy_lp.messages import AddPooling, AddRequest

Message = AddRequest | AddPooling


class WaitingQueue(Protocol):
    """Sequences that the worker does not have yet, by their ids."""

    def __len__(self) -> int:
        """How many there are."""

    def push(self, message: Message, client: str) -> None:
        """Take a sequence of a client."""

    def pop(self, held_back: Collection[str] = ()) -> tuple[Message, str]:
        """The next one, and whose it is: of none of the clients `held_back`; raises KeyError when there is none."""

    def discard(self, name: str) -> None:
        """Forget a sequence, if it is here."""

    def charge(self, client: str, tokens: int) -> None:
        """A client's sequences were given output tokens."""


class ArrivalQueue:
    """First come, first served."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Message, str]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, message: Message, client: str) -> None:
        """Take a sequence of a client."""
        self._waiting[message.request_id] = message, client

    def pop(self, held_back: Collection[str] = ()) -> tuple[Message, str]:
        """The oldest one; raises KeyError when there is none."""
        for name, (_, client) in self._waiting.items():
            if client not in held_back:
                return self._waiting.pop(name)
        raise KeyError("nobody waits")

    def discard(self, name: str) -> None:
        """Forget a sequence, if it is here."""
        self._waiting.pop(name, None)

    def charge(self, client: str, tokens: int) -> None:
        """Tokens do not matter here."""


class FairQueue:
    """The client that was given the fewest tokens goes next, with the oldest of its sequences.

    Tokens are those of prompts that were sent to the worker and those that it generated. A client that comes back
    after a pause begins where the least served one of those who wait is: nobody saves up tokens while it asks for
    nothing. Of equals, the one that has waited for longer goes first.
    """

    def __init__(self) -> None:
        # Clients in the order in which they began to wait.
        self._waiting: dict[str, dict[str, Message]] = {}
        self._tokens: dict[str, int] = {}
        self._owners: dict[str, str] = {}
        self._last_left: str | None = None

    def __len__(self) -> int:
        return len(self._owners)

    def push(self, message: Message, client: str) -> None:
        """Take a sequence of a client."""
        if client not in self._waiting:
            self._tokens[client] = max(self._tokens.get(client, 0), self._floor())
            self._waiting[client] = {}
        self._waiting[client][message.request_id] = message
        self._owners[message.request_id] = client

    def pop(self, held_back: Collection[str] = ()) -> tuple[Message, str]:
        """The next one, and whose it is: of none of the clients `held_back`; raises KeyError when there is none."""
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
        """Forget a sequence, if it is here."""
        client = self._owners.pop(name, None)
        if client is None:
            return
        del self._waiting[client][name]
        if not self._waiting[client]:
            del self._waiting[client]
            self._last_left = client

    def charge(self, client: str, tokens: int) -> None:
        """A client's sequences were given tokens."""
        self._tokens[client] += tokens

    def _floor(self) -> int:
        if self._waiting:
            return min(self._tokens[client] for client in self._waiting)
        return 0 if self._last_left is None else self._tokens[self._last_left]
