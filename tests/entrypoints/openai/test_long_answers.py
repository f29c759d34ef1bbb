"""Answers of many megabytes: in pieces, held to limits, and the same numbers in every form."""

from __future__ import annotations

import base64
import json
import socket
from typing import Any

import httpx
import numpy as np
import pytest
from support.chat import REQUEST_SECONDS, metric
from support.server import ServerProcess, wait_until

from fastdeploy_lp.request.limits import MAX_POOLED_NUMBERS, MAX_PROMPT_LOGPROBS

HIDDEN_SIZE = 64
PROMPT = [3 + index % 200 for index in range(2040)]


@pytest.fixture
def server(lasting_server: ServerProcess) -> ServerProcess:
    return lasting_server


def posted(server: ServerProcess, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, timeout=REQUEST_SECONDS)


def test_vectors_of_all_tokens_come_in_pieces(server: ServerProcess) -> None:
    plain = posted(server, "/pooling", input=PROMPT, task="token_embed")
    assert plain.headers["transfer-encoding"] == "chunked"
    (found,) = plain.json()["data"]
    assert found["shape"] == [len(PROMPT), HIDDEN_SIZE]
    coded = posted(server, "/pooling", input=PROMPT, task="token_embed", encoding_format="base64")
    (other,) = coded.json()["data"]
    numbers = np.frombuffer(base64.b64decode(other["data"]), "<f4").reshape(other["shape"])
    np.testing.assert_array_equal(np.array(found["data"], np.float32), numbers)


def test_the_logprobs_of_a_long_prompt_come_in_pieces(server: ServerProcess) -> None:
    answer = posted(server, "/v1/completions", prompt=PROMPT, max_tokens=1, prompt_logprobs=20)
    assert answer.headers["transfer-encoding"] == "chunked"
    (choice,) = answer.json()["choices"]
    first, *positions = choice["prompt_logprobs"]
    assert first is None
    assert [str(token) in position for token, position in zip(PROMPT[1:], positions, strict=True)].count(False) == 0
    echoed = posted(server, "/v1/completions", prompt=PROMPT, max_tokens=0, echo=True, logprobs=2)
    logprobs = echoed.json()["choices"][0]["logprobs"]
    assert echoed.headers["transfer-encoding"] == "chunked"
    assert logprobs["token_logprobs"][1:] == [
        position[str(token)]["logprob"] for token, position in zip(PROMPT[1:], positions, strict=True)
    ]
    assert {len(entries) for entries in logprobs.values()} == {len(PROMPT)}


def test_an_answer_that_nobody_reads_holds_up_no_other(server: ServerProcess) -> None:
    data = json.dumps({"prompt": [PROMPT] * 4, "max_tokens": 1, "prompt_logprobs": 20, "ignore_eos": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: s\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    done = metric(server, "request_success_total", finished_reason="length")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(head.encode() + b"\r\n\r\n" + data)
        assert connection.recv(12) == b"HTTP/1.1 200"
        for _ in range(5):
            assert httpx.get(f"{server.url}/health/live").status_code == 200
        assert posted(server, "/v1/completions", prompt=[5], max_tokens=2, ignore_eos=True).status_code == 200
    wait_until(lambda: metric(server, "request_success_total", finished_reason="length") >= done + 5, REQUEST_SECONDS)


@pytest.mark.parametrize(
    ("path", "body", "param", "limit"),
    [
        (
            "/v1/completions",
            {"prompt": [PROMPT] * 26, "max_tokens": 1, "prompt_logprobs": 20},
            "prompt_logprobs",
            MAX_PROMPT_LOGPROBS,
        ),
        (
            "/v1/completions",
            {"prompt": [PROMPT] * 26, "max_tokens": 1, "logprobs": 20, "echo": True},
            "logprobs",
            MAX_PROMPT_LOGPROBS,
        ),
        ("/pooling", {"input": [PROMPT] * 129, "task": "token_embed"}, "task", MAX_POOLED_NUMBERS),
    ],
)
def test_larger_answers_are_refused_before_anything_is_computed(
    server: ServerProcess, path: str, body: dict[str, Any], param: str, limit: int
) -> None:
    before = metric(server, "prompt_tokens_total")
    answer = posted(server, path, **body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert str(limit) in error["message"]
    assert metric(server, "prompt_tokens_total") == before
