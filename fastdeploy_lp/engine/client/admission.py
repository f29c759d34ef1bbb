"""Admission of requests: the state of the engine, the limit of sequences, their queue, and Retry-After when refused."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from fastdeploy_lp.config import SchedulerConfig
from fastdeploy_lp.engine.errors import EngineDeadError, EngineDrainingError, EngineStartingError, QueueFullError
from fastdeploy_lp.messages import AddRequest, SequenceStep


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


# Extra sequences in the worker, as slots divided by this, so that a freed slot refills in the next step.
READY_SHARE = 4


@dataclass(frozen=True)
class Sent:
    """A sequence sent to the worker: its message and its client."""

    message: AddRequest
    client: str


class Outbox:
    """Sequences in flight: sent to the worker, or waiting for a worker or for their turn.

    limit: maximum number of sequences in the worker; None for no limit. The worker admits sequences in the order in
    which they are sent.
    prompt_tokens: a client's next sequence waits while the worker has this many of the client's prompt tokens without
    a step that reports them computed; None for no limit. So one client's long prompts delay another client's by at
    most one prompt.
    """

    def __init__(
        self,
        send: Callable[[AddRequest], None],
        queue: WaitingQueue,
        limit: int | None = None,
        prompt_tokens: int | None = None,
    ) -> None:
        self._send = send
        self._queue = queue
        self._limit = limit
        self._prompt_tokens = prompt_tokens
        # Prompt tokens of sent sequences that are not known to be computed.
        self._uncomputed: dict[str, int] = {}
        self._uncomputed_of: Counter[str] = Counter()
        self._open = False
        self._sent: dict[str, Sent] = {}
        self._owners: dict[str, str] = {}
        self._held: Counter[str] = Counter()

    @property
    def is_open(self) -> bool:
        """True if a worker accepts sequences."""
        return self._open

    @property
    def sent(self) -> list[str]:
        """Ids of the sequences in the worker, or in it when it ended, oldest first."""
        return list(self._sent)

    @property
    def num_waiting(self) -> int:
        """Number of sequences not sent yet."""
        return len(self._queue)

    def held_by(self, client: str) -> int:
        """Returns the number of a client's sequences, sent or not."""
        return self._held[client]

    def open(self) -> None:
        """Sends a new worker the previous worker's sequences, then the waiting ones."""
        self._open = True
        for sent in self._sent.values():
            self._send(sent.message)
        self._send_waiting()

    def close(self) -> None:
        """Stops sending: the worker is gone. Its sequences stay here."""
        self._open = False

    def add(self, message: AddRequest, client: str) -> None:
        """Adds a sequence and sends it as soon as possible."""
        self._owners[message.request_id] = client
        self._held[client] += 1
        self._queue.push(message, client)
        self._send_waiting()

    def remove(self, names: Iterable[str]) -> list[str]:
        """Removes ended or abandoned sequences; returns the ones in the worker."""
        known = []
        for name in names:
            owner = self._owners.pop(name, None)
            if owner is not None:
                self._held[owner] -= 1
                if not self._held[owner]:
                    del self._held[owner]
            if (sent := self._sent.pop(name, None)) is None:
                self._queue.discard(name)
                continue
            self._note_computed(name, sent.client)
            if self._open:
                known.append(name)
        self._send_waiting()
        return known

    def charge(self, steps: Iterable[SequenceStep]) -> None:
        """Charges clients for new tokens, which count for fair scheduling."""
        for step in steps:
            sent = self._sent.get(step.request_id)
            if sent is not None:
                self._queue.charge(sent.client, len(step.token_ids))
                self._note_computed(step.request_id, sent.client)
        self._send_waiting()

    def _send_waiting(self) -> None:
        while self._open and len(self._queue) and (self._limit is None or len(self._sent) < self._limit):
            try:
                message, client = self._queue.pop(self._held_back)
            except KeyError:
                return
            name = message.request_id
            self._sent[name] = Sent(message, client)
            if self._prompt_tokens is not None:
                self._uncomputed[name] = len(message.prompt_token_ids)
                self._uncomputed_of[client] += len(message.prompt_token_ids)
            self._send(message)

    @property
    def _held_back(self) -> set[str]:
        """Clients at the limit of uncomputed prompt tokens."""
        most = self._prompt_tokens
        return set() if most is None else {each for each, tokens in self._uncomputed_of.items() if tokens >= most}

    def _note_computed(self, name: str, client: str) -> None:
        tokens = self._uncomputed.pop(name, 0)
        if tokens:
            self._uncomputed_of[client] -= tokens
            if not self._uncomputed_of[client]:
                del self._uncomputed_of[client]


def make_outbox(send: Callable[[AddRequest], None], config: SchedulerConfig, *, fair: bool) -> Outbox:
    """Returns the outbox of a worker; `fair`: clients take turns."""
    if not fair:
        return Outbox(send, ArrivalQueue())
    slots = config.max_num_seqs
    return Outbox(send, FairQueue(), slots + -(-slots // READY_SHARE), config.max_num_batched_tokens)


REMEMBERED_ENDS = 64
LONGEST_SECONDS = 60
DEFAULT_SECONDS = 1


class RetryAfter:
    """Assigns each refused request a separate place in the order of retries.

    Places become free at the recent rate of ended sequences, so that clients that respect Retry-After do not retry all
    at once.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends: deque[float] = deque(maxlen=REMEMBERED_ENDS)
        self._promised = 0.0

    def ended(self) -> None:
        """Records the end of a sequence."""
        self._ends.append(self._clock())

    def seconds(self, places: int) -> int:
        """Returns whole seconds, 1 to 60, until `places` are probably free, after all earlier refusals."""
        now = self._clock()
        if len(self._ends) < 2 or now <= self._ends[0]:
            return DEFAULT_SECONDS
        per_place = (now - self._ends[0]) / len(self._ends)
        self._promised = min(max(self._promised, now) + places * per_place, now + LONGEST_SECONDS)
        return min(max(math.ceil(self._promised - now), 1), LONGEST_SECONDS)


# Limit of one client's sequences as a multiple of the remaining room.
FAIR_MULTIPLE = 4


@dataclass(eq=False)
class Entry:
    """Sequences of an admitted request that are not in flight yet."""

    count: int


class WaitingRoom:
    """Limits the sequences in flight.

    With `fair` no client can fill the room and block others: each may have at most a multiple of the remaining room,
    which is four fifths of the room for a single client, and four ninths each for two clients.
    """

    def __init__(self, config: SchedulerConfig, outbox: Outbox, *, fair: bool) -> None:
        self._config = config
        self._outbox = outbox
        self._fair = fair
        self._retry_after = RetryAfter()
        self._entering: list[Entry] = []

    def left(self, count: int) -> None:
        """Records the end of `count` sequences."""
        for _ in range(count):
            self._retry_after.ended()

    @contextmanager
    def entry(self, count: int) -> Iterator[Entry]:
        """Reserves room for sequences that start one by one; the caller lowers `count` as they do."""
        entry = Entry(count)
        self._entering.append(entry)
        try:
            yield entry
        finally:
            self._entering.remove(entry)

    def require(self, count: int, client: str, in_flight: int) -> None:
        """Raises QueueFullError unless `count` more sequences of a client fit.

        A request larger than the whole room is admitted when nothing else is in flight; otherwise it never could be.
        """
        config = self._config
        room = config.max_num_seqs + config.max_waiting_requests
        held = self._outbox.held_by(client)
        in_flight += sum(each.count for each in self._entering)
        if in_flight and in_flight + count > room:
            raise QueueFullError(
                f"the server is busy: {in_flight} sequences run or wait, {count} more are asked for, and it "
                f"takes {room} (max_num_seqs = {config.max_num_seqs}, "
                f"max_waiting_requests = {config.max_waiting_requests}); try again later",
                self._retry_after.seconds(in_flight + count - room),
            )
        if self._fair and held and held + count > FAIR_MULTIPLE * (room - in_flight):
            raise QueueFullError(
                f"the server is busy: {held} sequences of this API key run or wait, {in_flight} of all keys, and some "
                f"of the {room} that it takes are left to other keys (fair_queue); try again later",
                self._retry_after.seconds(count),
            )


class Admission:
    """The state of an engine for new requests: loading, open, draining, or dead."""

    def __init__(self) -> None:
        self._started = False
        self._draining = False
        self._dead: str | None = None
        self._ended = asyncio.Event()
        self._quiet = asyncio.Event()

    @property
    def dead(self) -> str | None:
        """The reason why no worker is left and none will follow, or None."""
        return self._dead

    @property
    def is_open(self) -> bool:
        """True if requests are accepted, even if they must wait for a worker."""
        return self._dead is None and not self._draining

    def require_started(self) -> None:
        """Raises EngineStartingError until the first worker is ready; that worker may have ended since."""
        if self._dead is None and not self._started:
            raise EngineStartingError("the model is still being loaded; try again later")

    def require_not_dead(self) -> None:
        """Raises EngineDeadError if the engine has ended."""
        if self._dead is not None:
            raise EngineDeadError(self._dead)

    def require_open(self) -> None:
        """Raises EngineStartingError, EngineDeadError or EngineDrainingError while no requests are accepted."""
        self.require_started()
        self.require_not_dead()
        if self._draining:
            raise EngineDrainingError("the server is shutting down; another one may take the request")

    def start(self) -> None:
        """Accepts requests from now on: the first worker is ready."""
        self._started = True

    def drain(self, *, quiet: bool) -> None:
        """Accepts no more requests; `quiet`: none are in flight."""
        self._draining = True
        if quiet:
            self._quiet.set()

    def note_quiet(self) -> None:
        """Notes that the last request in flight has ended."""
        if self._draining:
            self._quiet.set()

    async def wait_quiet(self) -> None:
        """Waits until no requests are in flight, after `drain`."""
        await self._quiet.wait()

    def end(self, reason: str) -> None:
        """Accepts no more requests: the engine has ended."""
        self._dead = reason
        self._quiet.set()
        self._ended.set()

    async def wait_dead(self) -> str:
        """Waits until the engine has ended; returns the reason."""
        await self._ended.wait()
        return self._dead or ""
