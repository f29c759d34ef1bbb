"""Streams are the same bytes however they are written, and none of them harms another one of its step."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from support.idle_engine import Client
from support.streams import CASES, CHAT, GOLDEN, HI, StreamCase, answers, over_asgi, steps
from support.told_engine import Told, listening, step_of, told

from fastdeploy_lp.engine.client.generation import Generation
from fastdeploy_lp.engine.prepare.input_processor import Prompt
from fastdeploy_lp.entrypoints.openai.routes.chat import ChatEvents
from fastdeploy_lp.entrypoints.openai.streaming.event_stream import EventWriter
from fastdeploy_lp.messages import SequenceStep
from fastdeploy_lp.request.outputs import CompletionDelta

SECONDS = 60
LONG_NAME = "m" * 30_000


def request_bytes(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def unchunked(body: bytes) -> tuple[list[bytes], bytes]:
    """The chunks of an answer, and what follows the last one."""
    chunks = []
    while True:
        size, _, rest = body.partition(b"\r\n")
        count = int(size, 16)
        if not count:
            return chunks, rest
        assert rest[count : count + 2] == b"\r\n"
        chunks.append(rest[:count])
        body = rest[count + 2 :]


async def over_http(running: Told, case: StreamCase) -> bytes:
    """The answer over this server's own connections."""
    async with listening(running.app) as port:
        before = len(running.worker.sequences)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes(case.path, case.body))
        head = b""

        async def begun() -> None:
            nonlocal head
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SECONDS)

        await steps(running, case, before, begun())
        body = await asyncio.wait_for(reader.read(), SECONDS)
        writer.close()
    assert head.startswith(b"HTTP/1.1 200")
    chunks, rest = unchunked(body)
    assert rest == b"\r\n"
    return b"".join(chunks)


@pytest.mark.parametrize("ask", [over_asgi, over_http], ids=["asgi", "http"])
def test_streams_are_those_of_the_record(ask: Callable[[Told, StreamCase], Any]) -> None:
    """Recorded before streams were written in the pass over a step, but for cached tokens in the first events."""
    assert uvloop.run(answers(ask)) == json.loads(GOLDEN.read_text())


@asynccontextmanager
async def streaming(running: Told, count: int, **fields: Any) -> AsyncIterator[list[Client]]:
    """So many chats that wait for their first tokens, in the order of their sequences in the worker."""
    body = json.dumps({"messages": HI, "stream": True, **fields}).encode()
    clients = []
    for _ in range(count):
        before = len(running.worker.sequences)
        clients.append(Client(running.app, CHAT, body))
        await running.worker.wait_for(before + 1)
    yield clients


def in_server(test: Callable[[Told], Awaitable[None]], folder: Path, name: str = "tiny-llama") -> None:
    async def run() -> None:
        async with told(folder, name) as running:
            await test(running)

    uvloop.run(run())


def test_error_in_one_stream_leaves_its_neighbours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three streams of a step, the second cannot be encoded; the others get all of their tokens."""
    encoded = ChatEvents.of

    def planted(self: ChatEvents, place: int, delta: CompletionDelta) -> bytes:
        if self._generation.request_id.endswith("chatcmpl-bad") and self._num_tokens == 2:
            raise RuntimeError("planted")
        return encoded(self, place, delta)

    monkeypatch.setattr(ChatEvents, "of", planted)

    async def test(running: Told) -> None:
        tokens = running.tokens("It rained.")
        clients = []
        for name in ("one", "bad", "three"):
            async with streaming(running, 1, request_id=name) as opened:
                clients += opened
        names = [each.request_id for each in running.worker.sequences]
        for place in range(len(tokens)):
            await running.worker.step(*(step_of(name, tokens, place) for name in names))
        first, bad, third = [(await each.answer())[1].decode() for each in clients]
        assert running.worker.aborted == [names[1]]
        for content in (first, third):
            assert content.count("data: ") == len(tokens) + 2
            assert content.endswith("data: [DONE]\n\n")
            assert '"finish_reason":"length"' in content
        assert bad.count("chat.completion.chunk") == 3
        assert '"error"' in bad
        assert bad.endswith("data: [DONE]\n\n")

    in_server(test, tmp_path)


@pytest.mark.parametrize(("asked", "sizes"), [(2, [1, 4, 4, 1]), (6, [1, 6, 3])])
def test_the_longer_interval_of_request_and_server_joins_tokens(tmp_path: Path, asked: int, sizes: list[int]) -> None:
    fields = {"stream_interval": asked, "return_token_ids": True}

    async def run() -> None:
        async with told(tmp_path, stream_interval=4) as running, streaming(running, 1, **fields) as (client,):
            tokens = running.tokens("abcdefghij" * 2)[: sum(sizes)]
            (sequence,) = running.worker.sequences
            for place in range(len(tokens)):
                await running.worker.step(step_of(sequence.request_id, tokens, place))
            lines = (await client.answer())[1].decode().splitlines()
        events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
        pieces = [ids for event in events if (ids := event["choices"][0].get("token_ids"))]
        assert [len(ids) for ids in pieces] == sizes
        assert [token for ids in pieces for token in ids] == tokens

    uvloop.run(run())


def test_client_that_leaves_ends_its_request_only(tmp_path: Path) -> None:
    async def test(running: Told) -> None:
        tokens = running.tokens("It rained.")
        async with streaming(running, 2) as (leaver, reader):
            names = [each.request_id for each in running.worker.sequences]
            await running.worker.step(*(step_of(name, tokens, 0) for name in names))
            leaver.leave()
            await leaver.answer()
            assert running.worker.aborted == [names[0]]
            for place in range(1, len(tokens)):
                await running.worker.step(*(step_of(name, tokens, place) for name in names))
            assert (await reader.answer())[1].endswith(b"data: [DONE]\n\n")

    in_server(test, tmp_path)


def test_client_that_closes_its_connection_ends_its_request(tmp_path: Path) -> None:
    async def test(running: Told) -> None:
        tokens = running.tokens("It rained.")
        async with listening(running.app) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request_bytes(CHAT, json.dumps({"messages": HI, "stream": True}).encode()))
            (request,) = await running.worker.wait_for(1)
            await running.worker.step(step_of(request.request_id, tokens, 0))
            await reader.readuntil(b"data: ")
            writer.transport.abort()
            async with asyncio.timeout(SECONDS):
                while not running.worker.aborted:
                    await asyncio.sleep(0.001)
        assert running.worker.aborted == [request.request_id]

    in_server(test, tmp_path)


def test_client_that_does_not_read_fills_no_memory_and_misses_nothing(tmp_path: Path) -> None:
    """While its connection is full, further tokens wait as tokens; then they come in their order."""
    count = 2_000

    async def test(running: Told) -> None:
        # Each event has the model's long name, so that few of them fill the connection.
        tokens = (running.tokens("0123456789") * count)[:count]
        watched: list[asyncio.Transport] = []
        async with listening(running.app, watched) as port:
            with socket.socket() as slow:
                slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                slow.connect(("127.0.0.1", port))
                slow.setblocking(False)
                body = json.dumps({"messages": HI, "stream": True}).encode()
                await asyncio.get_running_loop().sock_sendall(slow, request_bytes(CHAT, body))
                (request,) = await running.worker.wait_for(1)
                for place in range(count):
                    await running.worker.step(step_of(request.request_id, tokens, place), turns=3)
                (transport,) = watched
                assert 0 < transport.get_write_buffer_size() < 4 * len(LONG_NAME) + 65_536
                received = await everything(slow)
        chunks, _ = unchunked(received.partition(b"\r\n\r\n")[2])
        events = b"".join(chunks).decode().split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        parts = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
        text = "".join(part["choices"][0]["delta"].get("content", "") for part in parts)
        assert text == running.engine.tokenizer.decode(tokens)
        assert len(parts) < count / 2

    in_server(test, tmp_path, LONG_NAME)


async def everything(connection: socket.socket) -> bytes:
    """All that comes until the server closes."""
    loop, pieces = asyncio.get_running_loop(), []
    while piece := await asyncio.wait_for(loop.sock_recv(connection, 1 << 20), SECONDS):
        pieces.append(piece)
    return b"".join(pieces)


class Connection:
    """Notes what is written to it, at once or by `send`; it is `full` when it takes nothing at once."""

    def __init__(self) -> None:
        self.written: list[tuple[str, bytes]] = []
        self.full = False
        self.drained = asyncio.Event()
        self.drained.set()

    def write(self, piece: bytes) -> bool:
        if not self.full:
            self.written.append(("at once", piece))
        return not self.full

    async def send(self, message: Any) -> None:
        await self.drained.wait()
        self.written.append(("sent", message["body"]))


class Numbers:
    """Stands for a completion: each `push` is a delta with the next number."""

    def __init__(self, generation: Generation) -> None:
        self.index = 0
        self._generation = generation
        self._count = self._told = 0
        self.finish_reason: str | None = None
        generation.completions.append(self)  # type: ignore[arg-type]

    def push(self, finish_reason: str | None = None) -> None:
        self._count += 1
        self.finish_reason = finish_reason
        self._generation.notify()

    def take_delta(self) -> CompletionDelta | None:
        if self._told == self._count:
            return None
        text = ",".join(map(str, range(self._told, self._count)))
        self._told = self._count
        return CompletionDelta(0, text, [1], self.finish_reason)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_order_is_kept_when_the_connection_fills_and_drains() -> None:
    async def run() -> None:
        generation = Generation("a", Prompt([1], "a"), [], stream=True, on_close=lambda _: None)
        numbers, connection = Numbers(generation), Connection()
        writer = EventWriter(connection.send, connection.write)
        numbers.push()
        sending = asyncio.create_task(writer.send_deltas([generation], lambda _, delta: delta.text.encode()))
        await turns()
        numbers.push()
        assert writer.blocked_since is None
        connection.full = True
        connection.drained.clear()
        numbers.push()
        await turns()
        assert writer.blocked_since is not None
        connection.full = False
        numbers.push()
        numbers.push()
        await turns()
        connection.drained.set()
        await turns()
        assert writer.blocked_since is None
        numbers.push()
        numbers.push("stop")
        await asyncio.wait_for(sending, SECONDS)
        once, sent = "at once", "sent"
        texts = [(once, b"0"), (once, b"1"), (sent, b"2"), (sent, b"3,4"), (once, b"5"), (once, b"6")]
        assert connection.written == texts

    asyncio.run(run())


def test_every_sequence_of_a_step_comes_in_one_chunk(tmp_path: Path) -> None:
    """One write for a stream and step, also for several completions."""

    async def test(running: Told) -> None:
        async with listening(running.app) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request_bytes(CHAT, json.dumps({"messages": HI, "stream": True, "n": 3}).encode()))
            names = [each.request_id for each in await running.worker.wait_for(3)]
            tokens = running.tokens("abc")
            for place in range(len(tokens)):
                await running.worker.step(*(step_of(name, tokens, place) for name in names))
            received = await asyncio.wait_for(reader.read(), SECONDS)
            writer.close()
        chunks, _ = unchunked(received.partition(b"\r\n\r\n")[2])
        assert [chunk.count(b"data: ") for chunk in chunks] == [3] * (1 + len(tokens)) + [1]

    in_server(test, tmp_path)


def test_cases_cover_every_api() -> None:
    assert {case.path for case in CASES.values()} == {CHAT, "/v1/completions", "/v1/messages", "/v1/responses"}


def test_step_without_sequences_of_streams_is_harmless(tmp_path: Path) -> None:
    async def test(running: Told) -> None:
        await running.worker.step(SequenceStep("nobody", [1]))
        assert running.engine.is_alive

    in_server(test, tmp_path)
