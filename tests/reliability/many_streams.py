"""A thousand streams at once over eight slots, of two API keys: who is served, and in which shares."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

from reliability.chaos_requests import Exchange, error_code
from soak_memory import status_mb
from support.server import ServerProcess

from fastdeploy_lp.entrypoints.bench.http_client import Client, HTTPClientError

CHAT = "v1/chat/completions"
TOKENS = 8


@dataclass
class Served:
    """One stream that was: whose it is, and when it ended."""

    key: str
    ended: float


@dataclass
class Crowd:
    """What became of all of them."""

    served: list[Served] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    rss_mb: list[float] = field(default_factory=list)

    def share(self, key: str) -> float:
        """A key's part of the streams that were served while both keys were, 0 to 1; 0 if they never were.

        Before, a key has the slots alone while the server reads the streams of the other one.
        """
        ends = [[each.ended for each in self.served if each.key == name] for name in self.keys]
        first, last = max(map(min, ends)), min(map(max, ends))
        while_both = [each for each in self.served if first <= each.ended <= last]
        return sum(each.key == key for each in while_both) / max(len(while_both), 1)

    @property
    def keys(self) -> set[str]:
        """Those with a stream that was served."""
        return {each.key for each in self.served}


async def send_crowd(server: ServerProcess, counts: dict[str, int]) -> Crowd:
    """So many streams of each key at the same time, all of one key before the first of the next."""
    crowd = Crowd()
    clients = {key: Client(server.url, {"Authorization": f"Bearer {key}"}) for key in counts}
    done = asyncio.Event()
    watching = asyncio.create_task(_note_memory(server, crowd, done))
    streams = [_stream(clients[key], key, number, crowd) for key, count in counts.items() for number in range(count)]
    await asyncio.gather(*streams)
    done.set()
    await watching
    for client in clients.values():
        await client.close()
    return crowd


async def _stream(client: Client, key: str, number: int, crowd: Crowd) -> None:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": f"{number} dogs"}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    exchange = Exchange()
    try:
        await client.exchange("POST", CHAT, json.dumps(body).encode(), exchange.receive)
    except (HTTPClientError, OSError) as error:
        crowd.problems.append(f"{type(error).__name__}: {error}")
        return
    if exchange.status == 429 and error_code(exchange.body) == "rate_limit_exceeded":
        crowd.refused[key] = crowd.refused.get(key, 0) + 1
        return
    payloads = exchange.payloads
    if exchange.status != 200 or payloads[-1] != "[DONE]":
        crowd.problems.append(f"status {exchange.status}: {bytes(exchange.body[-200:])!r}")
    elif json.loads(payloads[-2])["usage"]["completion_tokens"] != TOKENS:
        crowd.problems.append(f"not all tokens: {payloads[-2]}")
    else:
        crowd.served.append(Served(key, time.monotonic()))


async def _note_memory(server: ServerProcess, crowd: Crowd, done: asyncio.Event) -> None:
    while not done.is_set():
        crowd.rss_mb.append(status_mb(server.pid)["VmRSS"])
        try:
            await asyncio.wait_for(done.wait(), 0.5)
        except asyncio.TimeoutError:
            continue
