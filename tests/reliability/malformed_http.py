"""What comes over a socket that is no HTTP, or no good HTTP."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

BODY = json.dumps({"prompt": "Hello", "max_tokens": 1}).encode()


def malformed_request(seed: int, number: int) -> bytes:
    """The `number`-th bytes of a seed."""
    rng = random.Random(f"{seed}:raw:{number}")
    return rng.choice(SHAPES)(rng)


def _request(*headers: bytes, line: bytes = b"POST /v1/completions HTTP/1.1", body: bytes = BODY) -> bytes:
    return b"\r\n".join([line, b"Host: x", b"Content-Type: application/json", *headers, b"", body])


def _length(rng: random.Random) -> bytes:
    value = rng.choice([b"-1", b"0", b"1", b"99999999", b"18446744073709551616", b"0x10", b"1,2", b"", b"+5", b"1e3"])
    return _request(b"Content-Length: " + value)


def _two_lengths(rng: random.Random) -> bytes:
    second = rng.choice(
        [b"Content-Length: 3", b"Transfer-Encoding: chunked", b"content-length:5", b"Content-Length : 5"]
    )
    return _request(b"Content-Length: %d" % len(BODY), second)


def _chunked(rng: random.Random) -> bytes:
    body = rng.choice(
        [
            *(
                b"zz\r\nabc\r\n",
                b"5\r\nab",
                b"-1\r\n\r\n",
                b"FFFFFFFFFFFFFFFFF\r\n",
                b"0\r\n\r\n",
                b"0\r\nX: y\r\n\r\n",
            ),
            *(b'3;ext="\0"\r\nabc\r\n0\r\n\r\n', b"1\n{\n0\n\n", b"\r\n" * 50, b"3\r\nabcdef\r\n0\r\n\r\n"),
        ]
    )
    kind = rng.choice([b"chunked", b"Chunked", b"gzip, chunked", b"chunked, chunked", b"identity", b"xchunked"])
    return _request(b"Transfer-Encoding: " + kind, body=body)


def _header(rng: random.Random) -> bytes:
    header = rng.choice(
        [
            *(b"No colon here", b": no name", b"A\0B: c", b"X: a\0b", b"X: " + b"a" * 100_000, b" Folded: x", b"X : y"),
            *(
                b"X-Request-Id: a\rb",
                b"X-Request-Id: \x85\xe2\x80\xa8",
                b"Expect: 100-continue",
                b"Connection: upgrade",
            ),
            *(b"Upgrade: websocket\r\nConnection: Upgrade", b"Upgrade: h2c", b"Authorization: Bearer \xff\xfe"),
            *(b"Content-Type: text/plain", b"Content-Type: application/json; charset=\xff", b"Content-Encoding: gzip"),
            b"\r\n".join(b"X-%d: y" % number for number in range(2000)),
        ]
    )
    return _request(b"Content-Length: %d" % len(BODY), header)


def _line(rng: random.Random) -> bytes:
    line = rng.choice(
        [
            *(b"GET", b"", b"\0", b"POST  /v1/completions HTTP/1.1", b"POST /v1/completions HTTP/9.9", b"POST /x"),
            *(
                b"GET /" + b"a" * 100_000 + b" HTTP/1.1",
                b"GET /%00%0d%0aX:%20y HTTP/1.1",
                b"GET /../../etc/passwd HTTP/1.1",
            ),
            *(
                b"GET /v1/models/..%2f..%2fetc%2fpasswd HTTP/1.1",
                b"GET http://other/v1/models HTTP/1.1",
                b"BREW / HTTP/1.1",
            ),
            *(
                b"GET * HTTP/1.1",
                b"CONNECT x:1 HTTP/1.1",
                b"TRACE / HTTP/1.1",
                b"GET /\xff\xfe HTTP/1.1",
                b"get / http/1.1",
            ),
            *(
                b"GET /health?a=%ff&b=\x80 HTTP/1.1",
                b"GET //health HTTP/1.1",
                b"GET /health HTTP/1.0",
                b"PRI * HTTP/2.0",
            ),
        ]
    )
    return _request(b"Content-Length: %d" % len(BODY), line=line)


def _noise(rng: random.Random) -> bytes:
    kinds = [
        lambda: rng.randbytes(rng.randrange(1, 2000)),
        lambda: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(200),
        lambda: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.randbytes(50),
        lambda: b"\r\n" * rng.randrange(1, 500),
        lambda: b"\0" * rng.randrange(1, 500),
        lambda: b"",
    ]
    return rng.choice(kinds)()


def _cut(rng: random.Random) -> bytes:
    whole = _request(b"Content-Length: %d" % len(BODY))
    return whole[: rng.randrange(len(whole))]


def _flipped(rng: random.Random) -> bytes:
    whole = bytearray(_request(b"Content-Length: %d" % len(BODY)))
    for _ in range(rng.randint(1, 6)):
        whole[rng.randrange(len(whole))] = rng.randrange(256)
    return bytes(whole)


def _pipelined(rng: random.Random) -> bytes:
    good = _request(b"Content-Length: %d" % len(BODY))
    return good * rng.randint(2, 5) + rng.choice(SHAPES[:-1])(rng)


SHAPES: list[Callable[[random.Random], bytes]] = [
    *(_length, _two_lengths, _chunked, _header, _line, _noise, _cut, _flipped, _pipelined)
]
