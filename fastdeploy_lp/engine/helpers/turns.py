"""Limits the number of concurrent callers, with clients taking turns."""

from __future__ import annotations

import asyncio
from collections import deque

from fastdeploy_lp.engine.errors import QueueFullError

# Waiting callers; each may hold a request body in memory.
MAX_WAITING = 256
# One client's share of the waiting callers is one in this many.
SHARE = 4


class Turns:
    """`at_once` callers have a turn; the others wait, with clients served round-robin. Used from one event loop.

    most: limit of waiting callers; one client may have a quarter of it. what: the resource they wait for, for messages.
    A caller that is cancelled while it waits leaves the queue at once.
    """

    def __init__(self, at_once: int, what: str, most: int = MAX_WAITING) -> None:
        self._free = at_once
        self._what = what
        self._most = most
        self._most_of_client = -(-most // SHARE)
        # Clients in the order of their next turns.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @property
    def num_waiting(self) -> int:
        """Number of callers without a turn."""
        return sum(map(len, self._waiting.values()))

    async def take(self, client: str) -> None:
        """Waits for a turn, which `give_back` ends; raises QueueFullError when too many wait."""
        if self._free:
            self._free -= 1
            return
        self._require_room(client)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()
            else:
                self._leave(client, turn)
            raise

    def give_back(self) -> None:
        """Ends a turn, and passes it to the next client's oldest caller."""
        while self._waiting:
            turn = self._pop_next()
            # A caller that was cancelled stays in the queue until its task runs again.
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _pop_next(self) -> asyncio.Future[None]:
        client = next(iter(self._waiting))
        waiting = self._waiting.pop(client)
        turn = waiting.popleft()
        if waiting:
            self._waiting[client] = waiting
        return turn

    def _leave(self, client: str, turn: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(client)
        if waiting is None or turn not in waiting:
            return
        waiting.remove(turn)
        if not waiting:
            del self._waiting[client]

    def _require_room(self, client: str) -> None:
        count, own = self.num_waiting, len(self._waiting.get(client, ()))
        if own >= self._most_of_client:
            reason = f"{own} requests of this client wait for {self._what}, and at most {self._most_of_client} may"
        elif count >= self._most:
            reason = f"{count} requests wait for {self._what}, and at most {self._most} may"
        else:
            return
        raise QueueFullError(f"the server is busy: {reason}; try again later")
