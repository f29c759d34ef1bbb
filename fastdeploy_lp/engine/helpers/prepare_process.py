"""`python -m fastdeploy_lp.engine.helpers.prepare_process`: calls `prepare` of processors' authors.

All calls share one event loop. A call that blocks it ends this process, and no other. `Preparer` starts it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Coroutine, Generator
from typing import IO, Any

import msgspec

from fastdeploy_lp.engine.helpers.frames import read_frame, write_frame
from fastdeploy_lp.engine.helpers.trial_process import UNSENDABLE, Ready, TrialStart, processor_objects
from fastdeploy_lp.logits_processor import PrepareRequest, RequestArgsError
from fastdeploy_lp.logits_processor.arguments.forms import require_sendable
from fastdeploy_lp.logits_processor.errors import contained, described
from fastdeploy_lp.logits_processor.registry import load_processor
from fastdeploy_lp.platforms import shared_memory

BLOCKED_SECONDS = 1.0
"""Time after which a call that does not return to the event loop ends the process."""

MAX_VALUE = 1 << 17
"""Bytes of a value in msgpack."""


class PrepareCall(msgspec.Struct, tag=True):
    """Calls a processor's `prepare`."""

    number: int
    processor: str
    request: PrepareRequest


class CancelCall(msgspec.Struct, tag=True):
    """Cancels a call whose request has ended; the process answers with `Cancelled`."""

    number: int


class Prepared(msgspec.Struct, tag=True):
    """A call's value in msgpack, or why it has none."""

    number: int
    value: bytes = b""
    error: str | None = None


class Cancelled(msgspec.Struct, tag=True):
    """The event loop has got a `CancelCall`."""

    number: int


class Blocked(msgspec.Struct, tag=True):
    """The process ends, because this call has blocked its event loop."""

    number: int


PrepareReply = Ready | Prepared | Cancelled | Blocked


class _Watched(Coroutine[Any, Any, Any]):
    """A call's coroutine, which notes when it runs."""

    def __init__(self, number: int, call: Coroutine[Any, Any, Any], running: list[tuple[int, float]]) -> None:
        self._number = number
        self._call = call
        self._running = running

    def send(self, value: Any) -> Any:
        self._running.append((self._number, time.monotonic()))
        try:
            return self._call.send(value)
        finally:
            self._running.clear()

    def throw(self, *error: Any) -> Any:
        self._running.append((self._number, time.monotonic()))
        try:
            return self._call.throw(*error)
        finally:
            self._running.clear()

    def close(self) -> None:
        self._call.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._call.__await__()


class PrepareProcess:
    """Runs calls in the event loop of its thread, and writes their results to `replies`."""

    def __init__(self, start: TrialStart, replies: IO[bytes]) -> None:
        self._replies = replies
        self._lock = threading.Lock()
        objects = processor_objects(start)
        # One by one, not as a chain, which would include others' entry points.
        processors = [load_processor(spec, objects.get(spec)) for spec in start.specs]
        self._found = {each.name: each.found for each in processors}
        # The call that runs now, and since when.
        self._running: list[tuple[int, float]] = []
        self._tasks: dict[int, asyncio.Task[None]] = {}
        shared_memory.remove_of(os.getpid())
        self._reply(Ready())

    def receive(self, content: bytes) -> None:
        """Takes a message, in the event loop's thread."""
        message: PrepareCall | CancelCall = msgspec.msgpack.decode(content, type=PrepareCall | CancelCall)
        if isinstance(message, CancelCall):
            self._reply(Cancelled(message.number))
            task = self._tasks.get(message.number)
            if task is not None:
                task.cancel()
            return
        task = asyncio.get_running_loop().create_task(_Watched(message.number, self._run(message), self._running))
        self._tasks[message.number] = task
        task.add_done_callback(lambda _: self._tasks.pop(message.number, None))

    def watch(self) -> None:
        """Ends the process once a call has blocked the event loop; runs in its own thread."""
        while True:
            time.sleep(BLOCKED_SECONDS / 4)
            running = self._running[-1:]
            if running and time.monotonic() - running[0][1] > BLOCKED_SECONDS:
                self._reply(Blocked(running[0][0]))
                os._exit(1)

    async def _run(self, call: PrepareCall) -> None:
        try:
            self._reply(Prepared(call.number, await self._value(call)))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - an author's code may raise anything
            self._reply(Prepared(call.number, error=described(contained(error))))

    async def _value(self, call: PrepareCall) -> bytes:
        value = await self._found[call.processor].prepare(call.request)
        try:
            require_sendable(value, "the value")
            content = msgspec.msgpack.encode(value)
        except RequestArgsError as error:
            raise ValueError(f"{error.path}: {error.reason}") from None
        except UNSENDABLE as error:
            raise ValueError(f"the value cannot be sent: {error}") from None
        if len(content) > MAX_VALUE:
            raise ValueError(f"the value has {len(content)} bytes; at most {MAX_VALUE} are allowed")
        return content

    def _reply(self, reply: PrepareReply) -> None:
        with self._lock:
            write_frame(self._replies, msgspec.msgpack.encode(reply))


def main() -> None:
    """Reads one `TrialStart`, then runs calls until the other end closes the pipe."""
    # Ctrl-C in a terminal also reaches this process; the API process handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Output printed by processors goes to the log, not between replies.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    start = read_frame(sys.stdin.buffer)
    if start is not None:
        asyncio.run(_serve(PrepareProcess(msgspec.msgpack.decode(start, type=TrialStart), replies)))


async def _serve(process: PrepareProcess) -> None:
    loop = asyncio.get_running_loop()

    def receive() -> None:
        while (content := read_frame(sys.stdin.buffer)) is not None:
            loop.call_soon_threadsafe(process.receive, content)
        os._exit(0)

    threading.Thread(target=receive, daemon=True).start()
    threading.Thread(target=process.watch, daemon=True).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    main()
