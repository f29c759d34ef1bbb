"""POST /v1/embeddings with the real OpenAI client."""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from openai.types import CreateEmbeddingResponse
from support.chat import MODEL, REQUEST_SECONDS, metric, post, wait_for_running
from support.light import HIDDEN
from support.server import ServerProcess, wait_until

from fastdeploy_lp.checkpoint import resolve_model
from fastdeploy_lp.engine.tokenizer import Tokenizer

TEXTS = ["A cat sits on the mat.", "The kitten lies on the rug.", "Stock prices fell sharply today.", "北京 🎉"]
CONTEXT = 2048
ONE = 1e-6


def create(client: openai.Client, given: Any, **fields: Any) -> CreateEmbeddingResponse:
    extra = {name: fields.pop(name) for name in ("pooling", "normalize") if name in fields}
    return client.embeddings.create(model=MODEL, input=given, extra_body=extra, **fields)


def vectors(answer: CreateEmbeddingResponse) -> np.ndarray:
    """[inputs, dimensions]"""
    assert [each.index for each in answer.data] == list(range(len(answer.data)))
    assert {each.object for each in answer.data} == {"embedding"}
    return np.array([each.embedding for each in answer.data], np.float32)


def embed(client: openai.Client, given: Any, **fields: Any) -> np.ndarray:
    return vectors(create(client, given, **fields))


def post_body(server: ServerProcess, body: Any) -> httpx.Response:
    # Not as `json=`: the client would refuse half a surrogate pair itself.
    content, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
    return httpx.post(f"{server.url}/v1/embeddings", content=content, headers=headers, timeout=REQUEST_SECONDS)


def token_ids(text: str) -> list[int]:
    """The default model's tokens of a text."""
    return tokenizer().encode(text)


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(resolve_model(MODEL, show_progress=False).directory)


def test_the_sdk_gets_unit_vectors_of_the_hidden_size(light_client: openai.Client) -> None:
    answer = create(light_client, TEXTS)
    assert (answer.object, answer.model) == ("list", MODEL)
    found = vectors(answer)
    assert found.shape == (len(TEXTS), HIDDEN)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=ONE)


def test_means_of_like_texts_are_closer(client: openai.Client) -> None:
    cat, kitten, stocks, _ = embed(client, TEXTS, pooling="mean")
    assert cat @ kitten > cat @ stocks + 0.05


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_every_form_of_input_gives_the_same_bits(light_client: openai.Client, pooling: str) -> None:
    expected = embed(light_client, TEXTS, pooling=pooling)
    ids = [token_ids(text) for text in TEXTS]
    np.testing.assert_array_equal(embed(light_client, ids, pooling=pooling), expected)
    for text, tokens, vector in zip(TEXTS, ids, expected, strict=True):
        for given in (text, tokens, [text], [tokens]):
            np.testing.assert_array_equal(embed(light_client, given, pooling=pooling), [vector])


def test_numbers_and_base64_are_the_same_bits(light_server: ServerProcess, light_client: openai.Client) -> None:
    numbers = post_body(light_server, {"input": TEXTS, "encoding_format": "float"}).json()["data"]
    default = post_body(light_server, {"input": TEXTS}).json()["data"]
    coded = post_body(light_server, {"input": TEXTS, "encoding_format": "base64"}).json()["data"]
    assert default == numbers
    for plain, bytes_ in zip(numbers, coded, strict=True):
        decoded = np.frombuffer(base64.b64decode(bytes_["embedding"], validate=True), "<f4")
        assert decoded.tolist() == plain["embedding"]
    # The SDK asks for base64 by itself and for numbers on demand.
    np.testing.assert_array_equal(embed(light_client, TEXTS), embed(light_client, TEXTS, encoding_format="float"))


@pytest.mark.parametrize("dimensions", [1, 8, HIDDEN])
def test_dimensions_are_cut_before_the_length_becomes_one(light_client: openai.Client, dimensions: int) -> None:
    raw = embed(light_client, TEXTS, normalize=False)
    assert np.linalg.norm(raw, axis=1).min() > 2
    np.testing.assert_array_equal(
        embed(light_client, TEXTS, normalize=False, dimensions=dimensions), raw[:, :dimensions]
    )
    cut = raw[:, :dimensions]
    expected = cut / np.linalg.norm(cut, axis=1, keepdims=True)
    np.testing.assert_allclose(embed(light_client, TEXTS, dimensions=dimensions), expected, atol=ONE)


def test_usage_counts_the_tokens_of_all_inputs(light_server: ServerProcess, light_client: openai.Client) -> None:
    counted = metric(light_server, "prompt_tokens_total")
    answer = create(light_client, TEXTS, user="somebody")
    expected = sum(len(token_ids(text)) for text in TEXTS)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (expected, expected)
    assert metric(light_server, "prompt_tokens_total") == counted + expected
    assert post_body(light_server, {"input": "a"}).json()["usage"] == {"prompt_tokens": 1, "total_tokens": 1}


def test_a_prompt_may_fill_the_context_and_no_more(light_server: ServerProcess, light_client: openai.Client) -> None:
    answer = create(light_client, [5] * CONTEXT)
    assert answer.usage.prompt_tokens == CONTEXT
    error = post_body(light_server, {"input": [[5], [6], [7], [5] * (CONTEXT + 1)]}).json()["error"]
    assert (error["param"], error["code"]) == ("input.3", "context_length_exceeded")
    assert str(CONTEXT) in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": ["a", ""]}, "input.1"),
        ({"input": [[1], []]}, "input.1"),
        ({"input": [1, 49152]}, "input.1"),
        ({"input": [[1], [2, -1]]}, "input.1.1"),
        ({"input": [1, 2.5]}, "input.1"),
        ({"input": [True]}, "input.0"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": "\ud800"}, "input"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": HIDDEN + 1}, "dimensions"),
        ({"dimensions": "8"}, "dimensions"),
        ({"dimensions": 2**70}, "dimensions"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"pooling": "max"}, "pooling"),
        ({"normalize": "no"}, "normalize"),
        ({"user": 5}, "user"),
        ({"temperature": 0.5}, "temperature"),
        ({"logits_processors_args": {"logit_bias": {"1": 1.0}}}, "logits_processors_args"),
    ],
)
def test_what_can_not_be_served_is_a_400_that_names_the_field(
    light_server: ServerProcess, fields: dict[str, Any], param: str
) -> None:
    answer = post_body(light_server, {"input": "a", **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert error["message"].startswith(f"{param}: ")


def test_a_body_without_input_and_another_model_are_told(light_server: ServerProcess) -> None:
    error = post_body(light_server, {}).json()["error"]
    assert (error["param"], error["code"]) == ("input", "missing_required_parameter")
    answer = post_body(light_server, {"input": "a", "model": "gpt"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def test_embeddings_and_chats_at_the_same_time_leave_each_other_alone(
    server: ServerProcess, client: openai.Client, golden_cases: list[dict[str, Any]]
) -> None:
    expected = embed(client, TEXTS, pooling="mean")

    def chat(case: dict[str, Any]) -> str:
        body = {"messages": case["messages"], "temperature": 0, "max_tokens": 32}
        return str(post(server, body).json()["choices"][0]["message"]["content"])

    with ThreadPoolExecutor(8) as pool:
        texts = [pool.submit(chat, case) for case in golden_cases]
        found = [pool.submit(embed, client, TEXTS, pooling="mean") for _ in range(8)]
        for each in found:
            np.testing.assert_array_equal(each.result(), expected)
        assert [text.result() for text in texts] == [case["output_text"] for case in golden_cases]


def test_a_client_that_leaves_takes_its_inputs_along(server: ServerProcess) -> None:
    inputs = [[index % 1000 + 1, index // 1000] * 200 for index in range(500)]
    ended = metric(server, "request_success_total", finished_reason="stop")
    with httpx.Client(timeout=httpx.Timeout(REQUEST_SECONDS, read=0.5)) as impatient, pytest.raises(httpx.ReadTimeout):
        impatient.post(f"{server.url}/v1/embeddings", json={"input": inputs, "pooling": "mean"})
    wait_for_running(server, 0)
    wait_until(lambda: metric(server, "num_requests_waiting") == 0, 30)
    assert metric(server, "request_success_total", finished_reason="stop") - ended < len(inputs)
    assert post_body(server, {"input": "still there?"}).status_code == 200
