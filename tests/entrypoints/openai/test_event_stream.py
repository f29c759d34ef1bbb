"""An event that is encoded in parts is the event that the model would give."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_lp.entrypoints.openai.event_stream import TextEvent, server_sent_event
from fastdeploy_lp.entrypoints.openai.protocol.chat import ChatChunkChoice, ChatCompletionChunk, ChatDelta


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
