"""Record of the processors that are running, in memory that outlives their process."""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastdeploy_lp.logits_processor.declared import DeclaredProcessor

# One thread steps, and a few build processors.
MAX_THREADS = 16
ITEM_BYTES = 4


class CallKind(IntEnum):
    """Kind of a processor's call."""

    CHAIN = 1
    SHADOW = 2
    BUILD = 3


@dataclass(frozen=True)
class Culprit:
    """A processor that was running when its process ended, in a call of this `kind`."""

    name: str
    kind: CallKind


class RunningCalls:
    """An int32 for each thread: the processor that it runs, or 0.

    The API process creates the memory and a worker opens it by its file descriptor, so that no file is left if
    either is killed.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._memory = mmap.mmap(fd, MAX_THREADS * ITEM_BYTES)
        self._items = memoryview(self._memory).cast("i")
        self._places: dict[int, int] = {}
        self._last: list[int] = []

    @classmethod
    def create(cls) -> RunningCalls:
        """Returns new memory; its owner closes it."""
        fd = _anonymous_file()
        os.ftruncate(fd, MAX_THREADS * ITEM_BYTES)
        return cls(fd)

    @property
    def fd(self) -> int:
        """The file descriptor that the worker inherits."""
        return self._fd

    def begin(self, code: int) -> None:
        """Records that this thread calls a processor."""
        self._items[self._place()] = code

    def end(self) -> None:
        """Records that the processor has returned or raised."""
        self._items[self._place()] = 0

    def culprits(self, names: Sequence[str]) -> tuple[Culprit, ...]:
        """Returns the processors that were running when the worker ended; `names` are the declared ones.

        Works after `close`, too.
        """
        codes = self._last if self._memory.closed else list(self._items)
        found = [_decoded(code) for code in codes if code]
        return tuple(dict.fromkeys(Culprit(names[place], kind) for place, kind in found))

    def close(self) -> None:
        """Releases the memory in this process; a second call does nothing."""
        if not self._memory.closed:
            self._last = list(self._items)
            self._items.release()
            self._memory.close()
            os.close(self._fd)

    def _place(self) -> int:
        ident = threading.get_ident()
        place = self._places.get(ident)
        if place is None:
            # More threads than places share the last one.
            place = self._places[ident] = min(len(self._places), MAX_THREADS - 1)
        return place


class CallRecorder:
    """Recorder for the `place`-th declared processor; `kind` is the kind of its calls in steps."""

    def __init__(self, calls: RunningCalls, place: int, kind: CallKind) -> None:
        self._calls = calls
        self._step, self._build = _encoded(place, kind), _encoded(place, CallKind.BUILD)
        self.end = calls.end

    def begin_step(self) -> None:
        """Records the start of `update_state` or `apply`."""
        self._calls.begin(self._step)

    def begin_build(self) -> None:
        """Records the start of its constructor."""
        self._calls.begin(self._build)


def recorders(
    declared: Iterable[DeclaredProcessor], calls: RunningCalls | None, kind: CallKind
) -> dict[str, CallRecorder]:
    """Returns, by name, the recorders of the processors that are not builtin; empty without `calls`.

    Builtins are part of the engine: a crash in one is not a processor's fault.
    """
    if calls is None:
        return {}
    return {
        processor.name: CallRecorder(calls, place, kind)
        for place, processor in enumerate(declared)
        if processor.source != "builtin"
    }


def _encoded(place: int, kind: CallKind) -> int:
    return place * len(CallKind) + kind


def _decoded(code: int) -> tuple[int, CallKind]:
    place, kind = divmod(code - 1, len(CallKind))
    return place, CallKind(kind + 1)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fastdeploy_lp-processors")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
