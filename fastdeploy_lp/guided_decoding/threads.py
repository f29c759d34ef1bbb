"""Threads for the library's work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

BASE_STACK = 16 << 20
# Measured at the smallest rules that refer to one another, some 10 bytes each: half of it is enough.
STACK_PER_BYTE = 1 << 10
_creating = threading.Lock()


class GrammarThreads(ThreadPoolExecutor):
    """A pool whose threads have room to compile grammars of `max_bytes`.

    The library recurses over rules that refer to one another; at the usual 8 MB, a few thousand of them would end the
    process. Memory that is not reached is never used. Threads start when there is something to do for them.
    """

    def __init__(self, num_threads: int, name: str, max_bytes: int) -> None:
        super().__init__(num_threads, thread_name_prefix=name)
        self._stack = BASE_STACK + STACK_PER_BYTE * max_bytes

    def submit(
        self, fn: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Result]:
        """As the base class, which starts a thread here if none is free."""
        with _creating:
            usual = threading.stack_size(self._stack)
            try:
                return super().submit(fn, *args, **kwargs)
            finally:
                threading.stack_size(usual)
