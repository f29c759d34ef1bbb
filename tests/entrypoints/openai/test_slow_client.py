"""A client that reads slowly gets everything in the end."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
from support.chat import HELLO, metric
from support.server import ServerProcess, wait_until

CHOICES, TOKENS = 2, 32
# Stands in every chunk, so that few tokens fill all buffers between the server and the client.
LONG_NAME = "m" * 100_000


@pytest.fixture(scope="module")
def wordy_server() -> Iterator[ServerProcess]:
    """Its chunks are large."""
    with ServerProcess("--served-model-name", LONG_NAME, "--max-num-seqs", str(CHOICES)) as running:
        yield running


def test_client_that_reads_when_all_is_generated_misses_nothing(wordy_server: ServerProcess) -> None:
    """While the connection is full, tokens gather; the last of them carry each choice's reason."""
    fields = {"n": CHOICES, "seed": 3, "max_tokens": TOKENS, "ignore_eos": True}
    body = json.dumps({"messages": HELLO, **fields, "stream": True, "stream_options": {"include_usage": True}}).encode()
    head = "POST /v1/chat/completions HTTP/1.0\r\nHost: server\r\nContent-Type: application/json\r\n"
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect(("127.0.0.1", wordy_server.port))
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_until(lambda: metric(wordy_server, "generation_tokens_total") >= CHOICES * TOKENS, 60)
        connection.settimeout(60)
        received = b"".join(iter(lambda: connection.recv(1 << 20), b"")).decode()
    payloads = [line.removeprefix("data: ") for line in received.splitlines() if line.startswith("data: ")]
    assert payloads[-1] == "[DONE]"
    *parts, usage = [json.loads(payload) for payload in payloads[:-1]]
    reasons = [choice["finish_reason"] for part in parts for choice in part["choices"] if choice["finish_reason"]]
    assert reasons == ["length"] * CHOICES
    assert usage["usage"]["completion_tokens"] == CHOICES * TOKENS
