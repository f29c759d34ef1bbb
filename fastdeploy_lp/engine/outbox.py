"""What goes to the worker, and what waits until it can."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fastdeploy_lp.config import SchedulerConfig
from fastdeploy_lp.engine.waiting_queue import ArrivalQueue, FairQueue, Message, WaitingQueue
from fastdeploy_lp.messages import SequenceStep

# Sequences after those in the slots, so that one that becomes free is taken in the next step.
READY_SHARE = 4


@dataclass(frozen=True)
class Sent:
    """A sequence that the worker has, as it was told of it, and whose it is."""

    message: Message
    client: str


class Outbox:
    """Sequences in flight: those that were sent and those that wait, because there is no worker or not their turn.

    limit: how many the worker has at a time; None for any number. The worker takes sequences in the order in
    which they are sent.
    prompt_tokens: a client's next sequence waits while the worker has so many tokens of prompts of that client, of
    which no step has told an end; None for any number. So long prompts of one client delay no other's by more than one.
    """

    def __init__(
        self,
        send: Callable[[Message], None],
        queue: WaitingQueue,
        limit: int | None = None,
        prompt_tokens: int | None = None,
    ) -> None:
        self._send = send
        self._queue = queue
        self._limit = limit
        self._prompt_tokens = prompt_tokens
        # Of sequences that were sent, the tokens of prompts that are not known to be computed.
        self._uncomputed: dict[str, int] = {}
        self._uncomputed_of: Counter[str] = Counter()
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
            if (sent := self._sent.pop(name, None)) is None:
                self._queue.discard(name)
                continue
            self._note_computed(name, sent.client)
            if self._open:
                known.append(name)
        self._send_waiting()
        return known

    def charge(self, steps: Iterable[SequenceStep]) -> None:
        """Sequences were given tokens, which count where clients take turns."""
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
        """Clients whose prompts the worker has enough of."""
        most = self._prompt_tokens
        return set() if most is None else {each for each, tokens in self._uncomputed_of.items() if tokens >= most}

    def _note_computed(self, name: str, client: str) -> None:
        tokens = self._uncomputed.pop(name, 0)
        if tokens:
            self._uncomputed_of[client] -= tokens
            if not self._uncomputed_of[client]:
                del self._uncomputed_of[client]


def make_outbox(send: Callable[[Message], None], config: SchedulerConfig, *, fair: bool) -> Outbox:
    """The outbox of a worker; `fair`: clients take turns."""
    if not fair:
        return Outbox(send, ArrivalQueue())
    slots = config.max_num_seqs
    return Outbox(send, FairQueue(), slots + -(-slots // READY_SHARE), config.max_num_batched_tokens)
