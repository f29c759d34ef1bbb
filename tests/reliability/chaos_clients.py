"""Clients of all kinds, at work until a chaos run is over."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from typing import Any

from reliability.chaos_requests import (
    MALFORMED,
    WEIGHTS,
    Account,
    ClientLeft,
    End,
    Exchange,
    Kind,
    error_code,
    judge_answer,
)

from fastdeploy_lp.entrypoints.bench.http_client import Client, HTTPClientError

CHAT = "v1/chat/completions"
HANG_SECONDS = 90.0
HURRY_SECONDS = 0.02
BOOM_TOKENS = 5
# Clients that were refused and ask again at once would take the machine from the worker that is to start.
PAUSE_SECONDS = 0.3
# Longer than the server waits for a client that reads nothing.
SLOW_SECONDS = 5.0


class ChaosClients:
    """Send requests and judge what comes back, against `calm`: bodies with the texts that they have in calm times."""

    def __init__(self, url: str, calm: list[tuple[dict[str, Any], str]], seed: int) -> None:
        self.account = Account()
        self._url = url
        self._client = Client(url, {})
        self._calm = calm
        self._source = random.Random(seed)

    async def close(self) -> None:
        """Drop idle connections."""
        await self._client.close()

    async def work(self, until: float) -> None:
        """One client, which sends requests of all kinds one after the other."""
        while time.monotonic() < until:
            (kind,) = self._source.choices(list(WEIGHTS), list(WEIGHTS.values()))
            body, text = self._source.choice(self._calm)
            try:
                await asyncio.wait_for(self._send(kind, body, text), HANG_SECONDS)
                await asyncio.sleep(self._source.uniform(0, PAUSE_SECONDS))
            except asyncio.TimeoutError:
                self.account.blame(kind, f"hangs: no whole answer within {HANG_SECONDS:g} s")
            except (HTTPClientError, OSError) as error:
                self.account.blame(kind, f"{type(error).__name__}: {error}")

    async def read_slowly(self, until: float) -> None:
        """One client that asks for much and does not read it."""
        port = int(self._url.rpartition(":")[2])
        prompt = [{"role": "user", "content": "fox"}]
        wanted = {"max_tokens": 3000, "logprobs": True, "top_logprobs": 20, "ignore_eos": True, "stream": True}
        data = json.dumps({"messages": prompt, **wanted, "seed": 1}).encode()
        head = (
            f"POST /{CHAT} HTTP/1.1\r\nHost: s\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        while time.monotonic() < until:
            with socket.socket() as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                connection.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_connect(connection, ("127.0.0.1", port))
                await loop.sock_sendall(connection, head.encode() + data)
                refused = b" 200" not in await loop.sock_recv(connection, 12)
                left = max(until - time.monotonic(), 0.0)
                await asyncio.sleep(min(PAUSE_SECONDS if refused else SLOW_SECONDS, left))
            self.account.note(Kind.SLOW_READER, End.ERROR if refused else End.ABORT)

    async def ask_until_served(self, seconds: float) -> float:
        """Ask for one answer again and again until it is right; gives how long that took, raises TimeoutError."""
        began = time.monotonic()
        body, text = self._calm[0]
        account = Account()
        while not account.count(Kind.PLAIN, End.RIGHT):
            if time.monotonic() - began > seconds:
                raise TimeoutError
            await self._exchange_and_judge(account, Kind.PLAIN, body, text)
            await asyncio.sleep(PAUSE_SECONDS)
        self.account.problems += account.problems
        return time.monotonic() - began

    async def _send(self, kind: Kind, body: dict[str, Any], text: str) -> None:
        if kind is Kind.MALFORMED:
            await self._send_malformed()
        elif kind is Kind.LEAVER:
            exchange = Exchange(leave_after=self._source.randint(0, 60))
            try:
                await self._post(body, exchange)
            except ClientLeft:
                self.account.note(kind, End.ABORT)
            else:
                judge_answer(self.account, kind, exchange, text)
        else:
            await self._exchange_and_judge(self.account, kind, body, text)

    async def _exchange_and_judge(self, account: Account, kind: Kind, body: dict[str, Any], text: str) -> None:
        if kind is Kind.PLAIN:
            body = body | {"stream": False}
        elif kind is Kind.FAULTY:
            body = body | {"logits_processors_args": {"boom": BOOM_TOKENS}}
        elif kind is Kind.HURRIED:
            body = body | {"timeout": HURRY_SECONDS}
        exchange = Exchange()
        await self._post(body, exchange)
        judge_answer(account, kind, exchange, text, must_fail=kind is Kind.FAULTY)

    async def _send_malformed(self) -> None:
        exchange = Exchange()
        data = self._source.choice(MALFORMED)
        await self._client.exchange("POST", CHAT, data, exchange.receive)
        code = error_code(exchange.body)
        # A full server refuses a request before it reads its body.
        if exchange.status in (400, 429):
            self.account.note(Kind.MALFORMED, End.ERROR, code)
        else:
            self.account.blame(Kind.MALFORMED, f"status {exchange.status} for {data!r}")

    async def _post(self, body: dict[str, Any], exchange: Exchange) -> None:
        await self._client.exchange("POST", CHAT, json.dumps(body).encode(), exchange.receive)


async def calm_texts(url: str, bodies: list[dict[str, Any]]) -> list[tuple[dict[str, Any], str]]:
    """Each body with its text, as a server gives it that nobody disturbs; plain and streamed have to agree."""
    client = Client(url, {})
    found = []
    for body in bodies:
        account = Account()
        plain, streamed = Exchange(), Exchange()
        await client.exchange("POST", CHAT, json.dumps(body | {"stream": False}).encode(), plain.receive)
        text: str = json.loads(plain.body)["choices"][0]["message"]["content"]
        await client.exchange("POST", CHAT, json.dumps(body).encode(), streamed.receive)
        judge_answer(account, Kind.STREAM, streamed, text)
        if account.problems:
            raise RuntimeError(account.problems[0])
        found.append((body, text))
    await client.close()
    return found
