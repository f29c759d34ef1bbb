"""POST /pooling: vectors, one a token, conversations, and an IO processor's data."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import numpy as np
import pytest
from support.chat import REQUEST_SECONDS, metric
from support.errors import check_error
from support.server import ServerProcess

PROMPTS = ["the dog", "the quick brown fox", "over"]
HIDDEN_SIZE = 64
CONTEXT = 128
SECRET = "secret"


@pytest.fixture(scope="module")
def server(named_server: ServerProcess) -> ServerProcess:
    """The tiny model with an IO processor that a package brings."""
    return named_server


def pooled(server: ServerProcess, path: str = "/pooling", **body: Any) -> httpx.Response:
    content, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
    return httpx.post(f"{server.url}{path}", content=content, headers=headers, timeout=REQUEST_SECONDS)


def vectors(answer: httpx.Response) -> list[np.ndarray]:
    """Each input's numbers in their shape."""
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["object"] == "list"
    assert body["id"].startswith("pool-")
    assert [each["index"] for each in body["data"]] == list(range(len(body["data"])))
    found = []
    for each in body["data"]:
        data = each["data"]
        flat = np.frombuffer(base64.b64decode(data), "<f4") if isinstance(data, str) else np.array(data, np.float32)
        found.append(flat.reshape(each["shape"]))
    return found


def test_a_vector_is_that_of_embeddings(server: ServerProcess) -> None:
    for fields in ({}, {"pooling": "mean"}, {"dimensions": 5, "normalize": False}):
        expected = pooled(server, "/v1/embeddings", input=PROMPTS, **fields).json()
        answer = pooled(server, input=PROMPTS, task="embed", **fields)
        assert [each.tolist() for each in vectors(answer)] == [
            np.array(each["embedding"], np.float32).tolist() for each in expected["data"]
        ]
        assert answer.json()["usage"] == expected["usage"]


def test_the_vectors_of_tokens_come_to_the_vector_of_the_prompt(server: ServerProcess) -> None:
    rows = vectors(pooled(server, input=PROMPTS, task="token_embed", normalize=False))
    means = vectors(pooled(server, input=PROMPTS, pooling="mean", normalize=False))
    ends = vectors(pooled(server, input=PROMPTS, pooling="last", normalize=False))
    tokens = pooled(server, input=PROMPTS).json()["usage"]["prompt_tokens"]
    assert sum(len(each) for each in rows) == tokens
    for row, mean, end in zip(rows, means, ends, strict=True):
        assert row.shape[1] == HIDDEN_SIZE
        np.testing.assert_allclose(row.mean(axis=0), mean, atol=1e-5)
        np.testing.assert_array_equal(row[-1], end)
    coded = vectors(pooled(server, input=PROMPTS, task="token_embed", normalize=False, encoding_format="base64"))
    for row, other in zip(rows, coded, strict=True):
        np.testing.assert_array_equal(row, other)
    for row in vectors(pooled(server, input=PROMPTS[0], task="token_embed", dimensions=7)):
        np.testing.assert_allclose(np.linalg.norm(row, axis=1), 1.0, atol=1e-6)


def test_a_conversation_is_pooled_after_the_chat_template(server: ServerProcess) -> None:
    messages = [{"role": "user", "content": "the dog"}]
    (plain,) = vectors(pooled(server, messages=messages))
    (expected,) = vectors(pooled(server, input="user: the dog\n"))
    np.testing.assert_array_equal(plain, expected)
    (begun,) = vectors(pooled(server, messages=messages, add_generation_prompt=True))
    (expected,) = vectors(pooled(server, input="user: the dog\nassistant: "))
    np.testing.assert_array_equal(begun, expected)


def test_data_goes_through_the_io_processor(server: ServerProcess) -> None:
    counted = metric(server, "prompt_tokens_total")
    answer = pooled(server, data={"texts": PROMPTS}, request_id="mine", normalize=False, pooling="mean")
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert (body["id"], body["object"]) == ("pool-mine", "io_processor")
    means = vectors(pooled(server, input=PROMPTS, pooling="mean", normalize=False))
    assert body["data"] == {"shapes": [[HIDDEN_SIZE, float(np.sum(each))] for each in means]}
    assert metric(server, "prompt_tokens_total") == counted + 2 * body["usage"]["prompt_tokens"]
    rows = pooled(server, data={"texts": [[5, 6, 7]]}, task="token_embed").json()["data"]["shapes"]
    assert rows[0][:2] == [3, HIDDEN_SIZE]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": "a", "data": {}}, "data"),
        ({"input": "a", "messages": [{"role": "user", "content": "a"}]}, "messages"),
        ({"input": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ({"data": {"texts": ["a"]}, "encoding_format": "base64"}, "encoding_format"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input.1"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"input": [5] * (CONTEXT + 1)}, "input"),
        ({"messages": [{"role": "user", "content": "the dog " * CONTEXT}]}, "messages"),
        ({"input": "a", "task": "classify"}, "task"),
        ({"input": "a", "task": "token_embed", "pooling": "mean"}, "pooling"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": HIDDEN_SIZE + 1}, "dimensions"),
        ({"input": "a", "normalize": 1}, "normalize"),
        ({"input": "a", "temperature": 1}, "temperature"),
        ({"data": "unreadable"}, "data"),
        ({"data": 0}, "data"),
        ({"data": {"texts": []}}, "data.texts"),
        ({"data": {"texts": ["a"], "fail": 5}}, "data.fail"),
        ({"data": {"texts": ["a", ""]}}, "data"),
        ({"data": {"texts": ["a"]}, "dimensions": 5}, "dimensions"),
        ({"data": {"texts": [[5] * (CONTEXT + 1)]}}, "data"),
    ],
)
def test_what_can_not_be_served_is_a_400_that_names_the_field(
    server: ServerProcess, body: dict[str, Any], param: str
) -> None:
    error = check_error(pooled(server, **body), 400)
    assert error["param"] == param
    assert error["message"].startswith(f"{param}: ")


@pytest.mark.parametrize(
    ("data", "method"),
    [
        ({"texts": ["a"], "fail": "parse_request"}, "parse_request (RuntimeError)"),
        ({"texts": ["a"], "fail": "pre_process", "error": "SystemExit"}, "pre_process (SystemExit)"),
        ({"texts": ["a", 5]}, "pre_process (InvalidRequestError)"),
        ({"texts": ["a", "b"]}, "post_process (RuntimeError)"),
        ({"texts": ["a", "b", "c", "d"]}, "output_to_response (TypeError)"),
    ],
)
def test_what_the_io_processor_raises_is_a_500_with_its_name(server: ServerProcess, data: Any, method: str) -> None:
    told = len(server.log)
    error = check_error(pooled(server, data=data), 500)
    assert error["message"] == f"IO processor lengths failed in {method}"
    assert error["code"] == "request_failed"
    assert SECRET not in error["message"]
    new = server.log[told:]
    assert error["message"] in new
    assert "Traceback" in new
    assert pooled(server, data={"texts": ["still there"]}).status_code == 200


def test_data_without_an_io_processor_is_refused(strict_server: ServerProcess) -> None:
    error = check_error(pooled(strict_server, data={"texts": ["a"]}), 400)
    assert error["param"] == "data"
    assert "--io-processor-plugin" in error["message"]


def test_another_model_is_not_found(server: ServerProcess) -> None:
    assert check_error(pooled(server, input="a", model="gpt"), 404)["code"] == "model_not_found"
