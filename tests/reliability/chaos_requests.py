"""What the clients of a chaos run send, and what may become of it."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from soak_requests import random_plans

from fastdeploy_lp.entrypoints.bench.load import SSEDecoder, has_text

MIN_TOKENS, MAX_TOKENS = 10, 300
# A request may fail with a lost worker, with a full queue, and with a processor in quarantine: one that is running when
# a signal hits the worker is suspected.
EXPECTED_CODES = {"worker_lost", "rate_limit_exceeded", "logits_processor_quarantined"}
MALFORMED = (
    b'{"messages": [',
    b"[]",
    b"\xff\xfe\x00",
    b'{"messages": "Hi", "n": "two"}',
    b'{"messages": [{"role": "user", "content": "Hi"}], "no_such_field": 1}',
    b'{"messages": [{"role": "user", "content": "Hi"}], "temperature": -4}',
    b'{"messages": [{"role": "user", "content": "Hi"}], "logits_processors_args": {"nobody": 1}}',
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
)


class Kind(Enum):
    """What a client does."""

    PLAIN = "plain"
    STREAM = "stream"
    LEAVER = "leaver"
    MALFORMED = "malformed"
    FAULTY = "faulty"
    HURRIED = "hurried"
    SLOW_READER = "slow reader"


WEIGHTS = {
    Kind.PLAIN: 25,
    Kind.STREAM: 40,
    Kind.LEAVER: 15,
    Kind.MALFORMED: 8,
    Kind.FAULTY: 7,
    Kind.HURRIED: 5,
}


class End(Enum):
    """What became of a request; exactly one of these, or something is wrong."""

    RIGHT = "right answer"
    ERROR = "clear error"
    ABORT = "abort"


class ClientLeft(Exception):  # noqa: N818 - no error: the plan says so
    """The client has closed its connection as planned."""


@dataclass
class Exchange:
    """What one request got back."""

    leave_after: int | None = None
    status: int = 0
    body: bytearray = field(default_factory=bytearray)

    def receive(self, status: int, body: bytes) -> None:
        """Take a piece of the answer; raises ClientLeft where the client has seen enough."""
        self.status = status
        self.body += body
        if self.leave_after is not None and self.body.count(b"data: ") > self.leave_after:
            raise ClientLeft

    @property
    def payloads(self) -> list[str]:
        """The events of a stream."""
        return list(SSEDecoder().feed(bytes(self.body)))


@dataclass
class Account:
    """Who ended how, and what should not have happened."""

    ends: dict[Kind, Counter[str]] = field(default_factory=lambda: {kind: Counter() for kind in Kind})
    problems: list[str] = field(default_factory=list)

    def note(self, kind: Kind, end: End, code: str = "") -> None:
        """A request ended in order."""
        self.ends[kind][f"{end.value} {code}".strip()] += 1

    def blame(self, kind: Kind, reason: str) -> None:
        """A request ended otherwise."""
        self.problems.append(f"{kind.value}: {reason}"[:400])

    def count(self, kind: Kind, end: End) -> int:
        """Requests of a kind that ended so."""
        return sum(count for name, count in self.ends[kind].items() if name.startswith(end.value))


def bodies(count: int, seed: int) -> list[dict[str, Any]]:
    """Requests whose answers do not depend on when they run: greedy ones, and sampled ones with a seed."""
    source = random.Random(seed)
    found = []
    for plan in random_plans(count, seed):
        body = plan.body | {"max_tokens": source.randint(MIN_TOKENS, MAX_TOKENS), "ignore_eos": True}
        body.pop("stream_options")
        found.append(body)
    return found


def plain_text(body: bytes | bytearray) -> str:
    """The content of a plain answer."""
    content: str = json.loads(body)["choices"][0]["message"]["content"]
    return content


def judge_answer(account: Account, kind: Kind, exchange: Exchange, calm: str, *, must_fail: bool = False) -> None:
    """Hold an answer against the one of calm times; with `must_fail` only the fault of its processor is right."""
    expected = EXPECTED_CODES | ({"request_failed"} if must_fail else set())
    expected |= {"timeout"} if kind is Kind.HURRIED else set()
    if exchange.status != 200:
        code = error_code(exchange.body)
        if code in expected:
            account.note(kind, End.ERROR, code)
        else:
            account.blame(kind, f"status {exchange.status}: {bytes(exchange.body[:300])!r}")
        return
    streamed = exchange.body.startswith(b"data: ")
    text, code, is_whole = _read_stream(exchange) if streamed else (plain_text(exchange.body), None, True)
    if code in expected and calm.startswith(text):
        account.note(kind, End.ERROR, code or "")
    elif code is None and is_whole and text == calm and not must_fail:
        account.note(kind, End.RIGHT)
    else:
        account.blame(kind, f"code {code}, whole {is_whole}, {len(text)} of {len(calm)} characters, {text[-40:]!r}")


def error_code(body: bytes | bytearray) -> str:
    """The code of a refusal; what it is instead when it is none."""
    try:
        code: str = json.loads(body)["error"]["code"]
    except (ValueError, KeyError, TypeError):
        return f"no error body: {bytes(body[:200])!r}"
    return code


def _read_stream(exchange: Exchange) -> tuple[str, str | None, bool]:
    """Its text, the code of an error event, and whether [DONE] stands behind all of it and a reason before."""
    text, code, reason = "", None, None
    payloads = exchange.payloads
    for payload in payloads:
        if payload == "[DONE]":
            continue
        chunk = json.loads(payload)
        if "error" in chunk:
            code = chunk["error"]["code"]
        elif has_text(chunk):
            text += chunk["choices"][0]["delta"]["content"]
        for choice in chunk.get("choices", []):
            reason = choice.get("finish_reason") or reason
    is_whole = payloads[-1:] == ["[DONE]"] and (code is not None or reason is not None)
    return text, code, is_whole
