"""Sequences whose logits processors are being built, before they reach the scheduler."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue

from fastdeploy_lp.logits_processor import LogitsProcessorChain, SlotFailure
from fastdeploy_lp.logits_processor.chain.author_threads import AuthorThreads, NotInTimeError, Outcome, PendingCall
from fastdeploy_lp.logits_processor.chain.builder import Built
from fastdeploy_lp.logits_processor.chain.groups import Order
from fastdeploy_lp.worker.sequence import Sequence


class WakeUp:
    """A pipe that is readable from `signal` to `clear`; closed on garbage collection."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)

    def fileno(self) -> int:
        """The descriptor to poll for reading."""
        return self._reader

    def signal(self) -> None:
        """Makes the pipe readable; any thread may call this."""
        # A full pipe is readable already.
        with suppress(BlockingIOError):
            os.write(self._writer, b"\0")

    def clear(self) -> None:
        """Drains the pipe; call it before handling the signalled events."""
        with suppress(BlockingIOError):
            while os.read(self._reader, 4096):
                pass

    def __del__(self) -> None:
        for end in (self._reader, self._writer):
            with suppress(OSError):
                os.close(end)


@dataclass(eq=False)
class _Work:
    """A sequence with its pending calls by processor; `order` is the new order that they build."""

    sequence: Sequence
    order: Order
    pending: dict[str, PendingCall] = field(default_factory=dict)
    built: dict[str, Built] = field(default_factory=dict)


class Preparing:
    """Builds processor instances for sequences, in threads; only the step thread may call its methods.

    A sequence that needs no new instance is ready at once, so that slow constructors delay no other request. If its
    order is being built already, it waits for that; if there is no room for its order beside the orders in use, it
    waits for room, and later sequences with new orders wait after it, so that later requests cannot starve an order.

    timeout: time limit of a constructor in seconds; 0 for no limit. `wake_up` is signalled when a call has ended.
    """

    def __init__(self, chain: LogitsProcessorChain, timeout: float) -> None:
        self._chain = chain
        self._threads = AuthorThreads(timeout)
        self._works: dict[str, _Work] = {}
        self._without_order: deque[Sequence] = deque()
        self._without_room: deque[Sequence] = deque()
        self._outcomes: SimpleQueue[tuple[_Work, str, Outcome]] = SimpleQueue()
        self.wake_up = WakeUp()

    def __len__(self) -> int:
        return len(self._works) + len(self._without_order) + len(self._without_room)

    @property
    def is_building(self) -> bool:
        """True while a call is running; sequences without room wait for others."""
        return bool(self._works)

    @property
    def has_news(self) -> bool:
        """True if `take` may return something."""
        return not self._outcomes.empty() or (bool(self._without_room) and self._has_room(self._without_room[0]))

    def add(self, sequence: Sequence) -> bool:
        """Starts preparing a sequence; returns True if it can be scheduled at once."""
        order = self._chain.builder.order_of(sequence.selection)
        if order is not None and order not in self._building and (self._without_room or not self._has_room(sequence)):
            self._without_room.append(sequence)
            return False
        return self._begin_unless_building(sequence)

    def take(self, *, wait: bool = False) -> tuple[list[Sequence], list[tuple[Sequence, SlotFailure]]]:
        """Returns the sequences that are ready now, and sequences that cannot run.

        wait: if any call is running, wait until one has ended; a sequence may need several.
        """
        ready: list[Sequence] = []
        failed: list[tuple[Sequence, SlotFailure]] = []
        outcome = self._next_outcome(wait=wait and bool(self._works))
        if outcome is not None:
            while outcome is not None:
                self._settle(*outcome, ready, failed)
                outcome = self._next_outcome(wait=False)
            waiting, self._without_order = self._without_order, deque()
            ready += [sequence for sequence in waiting if self._begin_unless_building(sequence)]
        # Only the first is checked, since all of them may be waiting in every step.
        while self._without_room and self._has_room(self._without_room[0]):
            sequence = self._without_room.popleft()
            if self._begin_unless_building(sequence):
                ready.append(sequence)
        return ready, failed

    def forget(self, request_id: str) -> None:
        """Drops the processors built for a request that is over; does nothing for an unknown one."""
        self._chain.builder.forget(request_id)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drops these requests, prepared or not, without waiting for running calls."""
        dropped = set(request_ids)
        for request_id in dropped:
            if request_id in self._works:
                self._drop(self._works[request_id])
            else:
                self.forget(request_id)
        for queue in (self._without_order, self._without_room):
            kept = [each for each in queue if each.request_id not in dropped]
            queue.clear()
            queue.extend(kept)

    @property
    def _building(self) -> set[Order]:
        return {work.order for work in self._works.values() if work.order is not None}

    def _has_room(self, sequence: Sequence) -> bool:
        builder = self._chain.builder
        return builder.has_room_for(builder.order_of(sequence.selection), self._building)

    def _begin_unless_building(self, sequence: Sequence) -> bool:
        """Returns True if the sequence can be scheduled at once."""
        if self._chain.builder.order_of(sequence.selection) in self._building:
            self._without_order.append(sequence)
            return False
        return self._begin(sequence)

    def _begin(self, sequence: Sequence) -> bool:
        builder = self._chain.builder
        order = builder.order_of(sequence.selection)
        new_order = None if builder.is_known(order) else order
        seed = sequence.params.seed or 0
        calls = builder.calls(sequence.request_id, sequence.selection, sequence.prompt_token_ids, seed)
        if not calls:
            return True
        work = self._works[sequence.request_id] = _Work(sequence, new_order)
        for call in calls:
            uploader = sequence.client if call.processor in sequence.selection.brought else None
            done = partial(self._done, work, call.processor)
            work.pending[call.processor] = self._threads.submit(call, done, uploader=uploader)
        return False

    def _done(self, work: _Work, name: str, outcome: Outcome) -> None:
        """Queues an outcome; runs in any thread."""
        self._outcomes.put((work, name, outcome))
        self.wake_up.signal()

    def _next_outcome(self, *, wait: bool) -> tuple[_Work, str, Outcome] | None:
        try:
            return self._outcomes.get(block=wait)
        except Empty:
            return None

    def _settle(
        self,
        work: _Work,
        name: str,
        outcome: Outcome,
        ready: list[Sequence],
        failed: list[tuple[Sequence, SlotFailure]],
    ) -> None:
        sequence = work.sequence
        # The request may have been aborted, or another processor may have failed.
        if self._works.get(sequence.request_id) is not work:
            return
        if outcome.error is None:
            work.built[name] = outcome.value
        else:
            built = self._chain.builder.without(name, sequence.selection, outcome.error)
            if built is None:
                self._drop(work)
                failed.append((sequence, _failure(name, outcome.error)))
                return
            work.built[name] = built
        if len(work.built) == len(work.pending):
            del self._works[sequence.request_id]
            self._chain.builder.adopt(sequence.request_id, sequence.selection, work.built)
            ready.append(sequence)

    def _drop(self, work: _Work) -> None:
        for pending in work.pending.values():
            pending.cancel()
        del self._works[work.sequence.request_id]
        self.forget(work.sequence.request_id)


def _failure(name: str, error: BaseException) -> SlotFailure:
    if isinstance(error, NotInTimeError):
        return SlotFailure(str(error), quarantined=True)
    if isinstance(error, RuntimeError):  # it names the processor
        return SlotFailure(str(error))
    return SlotFailure(f"logits processor {name} cannot be built: {type(error).__name__}: {error}")
