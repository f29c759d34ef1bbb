"""An event that is encoded in parts is the event that the model would give, and a stream ends what it tells of."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from starlette.types import Message

from fastdeploy_lp.engine.client.generation import Generation
from fastdeploy_lp.engine.prepare.input_processor import Prompt
from fastdeploy_lp.entrypoints.openai.protocol.chat import ChatChunkChoice, ChatCompletionChunk, ChatDelta
from fastdeploy_lp.entrypoints.openai.streaming.event_stream import (
    EventStream,
    EventWriter,
    StreamWatch,
    TextEvent,
    failed_events,
    server_sent_event,
    stalled_streams,
)


def chunk_with(index: int, text: str) -> bytes:
    """A chunk as a stream sends it."""
    choice = ChatChunkChoice(index=index, delta=ChatDelta(content=text))
    chunk = ChatCompletionChunk(id='of "somebody"', created=1, model="m\n", choices=[choice])
    return server_sent_event(chunk)


@given(st.text(), st.integers(0, 127))
def test_text_event_parses_as_the_whole_event_does(text: str, index: int) -> None:
    build = partial(chunk_with, index)
    sent = TextEvent(build)(text)
    assert sent.startswith(b"data: ")
    assert sent.endswith(b"\n\n")
    assert sent.count(b"\n") == 2
    parsed, whole = (ChatCompletionChunk.model_validate_json(event[6:]) for event in (sent, build(text)))
    assert parsed == whole


@pytest.mark.parametrize("fails_at", [0, 1, None])
def test_generations_end_with_their_stream_also_when_it_cannot_begin(fails_at: int | None) -> None:
    """A connection that is gone raises with the first bytes that are written to it."""

    async def run() -> None:
        closed: list[Generation] = []
        generation = Generation("chatcmpl-1", Prompt([1], "a"), [], stream=True, on_close=closed.append)
        sent: list[Message] = []

        async def tell(out: EventWriter) -> None:
            await out.send(b"data: 1\n\n")

        async def send(message: Message) -> None:
            if len(sent) == fails_at:
                raise RuntimeError("the handler is closed")
            sent.append(message)

        async def stay() -> Any:
            await asyncio.Event().wait()

        watch = StreamWatch(0.0, 1, stalled_streams(CollectorRegistry()))
        stream = EventStream(tell, failed_events, [generation], watch)
        with nullcontext() if fails_at is None else pytest.raises(RuntimeError):
            await stream({"type": "http"}, stay, send)
        assert len(sent) == (3 if fails_at is None else fails_at)
        assert closed == [generation]

    asyncio.run(run())
