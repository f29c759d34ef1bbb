"""Threads for the library's work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

BASE_STACK = 16 << 20
# Measured at the smallest rules that refer to one another, some 10 bytes each: half of it is enough.
STACK_PER_BYTE = 1 << 10
_creating = threading.Lock()


def stack_bytes(max_bytes: int) -> int:
    """The stack of a thread that compiles or follows grammars of `max_bytes`."""
    return BASE_STACK + STACK_PER_BYTE * max_bytes


@contextmanager
def _stack_of(size: int) -> Iterator[None]:
    """Threads that start here have a stack of `size` bytes."""
    with _creating:
        usual = threading.stack_size(size)
        try:
            yield
        finally:
            threading.stack_size(usual)


def start_daemon(work: Callable[[], None], name: str, stack: int) -> threading.Thread:
    """Start a thread with a stack of so many bytes, which does not hold up the end of the process."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    with _stack_of(stack):
        thread.start()
    return thread


class GrammarThreads(ThreadPoolExecutor):
    """A pool whose threads have room to compile grammars of `max_bytes`.

    The library recurses over rules that refer to one another; at the usual 8 MB, a few thousand of them would end the
    process. Memory that is not reached is never used. Threads start when there is something to do for them.
    """

    def __init__(self, num_threads: int, name: str, max_bytes: int) -> None:
        super().__init__(num_threads, thread_name_prefix=name)
        self._stack = stack_bytes(max_bytes)

    def submit(
        self, fn: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Result]:
        """As the base class, which starts a thread here if none is free."""
        with _stack_of(self._stack):
            return super().submit(fn, *args, **kwargs)
