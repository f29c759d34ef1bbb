"""Which streams are ended because nobody reads them, on a clock of the test's own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry, Counter

from fastdeploy_lp.entrypoints.openai.streaming.event_stream import StreamWatch


@dataclass(eq=False)
class Stream:
    """Blocked or not, with so many tokens waiting."""

    blocked_since: float | None = None
    unread_tokens: int = 0
    name: str = "r"
    drops: int = 0

    def drop(self) -> None:
        self.drops += 1


def watched(streams: list[Stream], *, timeout: float, max_unread: int, now: float) -> float:
    """Look once at these; gives how many the counter counted."""

    async def look() -> float:
        counter = Counter("ended", "", registry=CollectorRegistry())
        watch = StreamWatch(timeout, max_unread, counter, lambda: now)
        for stream in streams:
            watch.add(stream)
        watch.look()
        watch.look()
        for stream in streams:
            watch.remove(stream)
        return counter._value.get()

    return asyncio.run(look())


@pytest.mark.parametrize(
    ("stream", "ended"),
    [
        (Stream(), False),
        (Stream(None, 1000), False),
        (Stream(95.0, 0), False),
        (Stream(89.0, 0), True),
        (Stream(99.9, 50), False),
        (Stream(99.9, 51), True),
    ],
)
def test_a_stream_ends_that_is_blocked_for_too_long_or_with_too_much(stream: Stream, ended: bool) -> None:
    assert watched([stream], timeout=10.0, max_unread=50, now=100.0) == ended
    assert stream.drops == ended


def test_without_a_timeout_only_tokens_count() -> None:
    streams = [Stream(0.0, 50), Stream(0.0, 51)]
    assert watched(streams, timeout=0.0, max_unread=50, now=1e9) == 1
    assert [stream.drops for stream in streams] == [0, 1]


def test_it_looks_by_itself_while_there_are_streams() -> None:
    async def run() -> None:
        ended = asyncio.Event()

        class Told(Stream):
            def drop(self) -> None:
                ended.set()

        watch = StreamWatch(1.0, 50, Counter("ended", "", registry=CollectorRegistry()), lambda: 100.0)
        stream = Told(0.0)
        watch.add(stream)
        await asyncio.wait_for(ended.wait(), 60)
        watch.remove(stream)
        # Nothing of it is left on the loop.
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
