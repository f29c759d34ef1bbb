"""Answers that are encoded in turns of the event loop while they are sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from pydantic import BaseModel
from starlette.types import Message

from fastdeploy_lp.entrypoints.openai.json_pieces import PiecedObject, Pieces, array, encoded
from fastdeploy_lp.entrypoints.openai.streaming.event_stream import StreamWatch, stalled_streams
from fastdeploy_lp.entrypoints.openai.streaming.pieced_answer import TURN_BYTES, EncodingTurns, PiecedAnswer

ROWS = 40
ROW = b'"' + b"x" * (TURN_BYTES // 2) + b'"'


class Body(BaseModel):
    id: str
    rows: list[str] = []


class Empty(BaseModel): ...


class Client:
    """Takes what an answer sends; `gate` holds it up, `progress` is told of each part."""

    def __init__(self, name: str, progress: list[str]) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.sent: list[Message] = []
        self._name = name
        self._progress = progress

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        self._progress.append(self._name)
        await self.gate.wait()

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def body(self) -> Any:
        return json.loads(b"".join(message["body"] for message in self.sent[1:]))


def long_body(made: list[int]) -> PiecedObject:
    """`made` gets an entry for each row that is encoded."""

    def rows() -> Iterator[Pieces]:
        for row in range(ROWS):
            made.append(row)
            yield (ROW,)

    return PiecedObject(Body(id="a"), {"rows": array(rows())})


async def answer(body: Pieces, client: Client, turns: EncodingTurns) -> None:
    watch = StreamWatch(0.0, 1, stalled_streams(CollectorRegistry()))
    await PiecedAnswer(body, "name", turns, watch)({"type": "http"}, client.receive, client.send)


def test_objects_and_arrays_in_pieces_are_json() -> None:
    nested = [PiecedObject(Empty(), {"a": array(encoded([1, "ü", None])), "b": array([])}) for _ in range(2)]
    whole = PiecedObject(Body(id='"'), {"rows": array(nested)})
    assert json.loads(b"".join(whole)) == {"id": '"', "rows": [{"a": [1, "ü", None], "b": []}] * 2}
    assert b"".join(PiecedObject(Body(id="x"))) == b'{"id":"x","rows":[]}'


def test_a_short_answer_is_sent_whole_with_its_length() -> None:
    async def exchange() -> Client:
        client = Client("c", [])
        await answer(PiecedObject(Body(id="a")), client, EncodingTurns())
        return client

    client = asyncio.run(exchange())
    assert len(client.sent) == 2
    assert client.headers[b"content-length"] == str(len(client.sent[1]["body"])).encode()
    assert client.headers[b"content-type"] == b"application/json"


def test_a_long_answer_is_encoded_as_its_client_reads_while_others_run() -> None:
    async def exchange() -> None:
        made: list[int] = []
        client, other, turns = Client("slow", []), Client("other", []), EncodingTurns()
        client.gate.clear()
        slow = asyncio.ensure_future(answer(long_body(made), client, turns))
        # While the first client reads nothing, the second gets its whole answer.
        await answer(long_body([]), other, turns)
        assert len(other.body["rows"]) == ROWS
        assert not slow.done()
        assert len(made) <= 4
        client.gate.set()
        await slow
        assert b"content-length" not in client.headers
        assert client.body == other.body
        assert max(len(message["body"]) for message in client.sent[1:]) < 3 * TURN_BYTES

    asyncio.run(exchange())


def test_long_answers_take_turns() -> None:
    async def exchange() -> list[str]:
        progress: list[str] = []
        turns = EncodingTurns()
        await asyncio.gather(*(answer(long_body([]), Client(name, progress), turns) for name in "ab"))
        return progress

    progress = asyncio.run(exchange())
    half = progress[: len(progress) // 2]
    assert min(half.count("a"), half.count("b")) > ROWS // 8
