"""Routes for which clients have their general `get` and `post`, and embeddings."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from support.clients import response_calls
from support.clients.case import USER
from support.clients.chat_cases import CONVERSATION, WEATHER
from support.clients.generation_cases import A, B
from support.clients.message_calls import COUNT_TOKENS, COUNTED, MESSAGE_CASES, MESSAGES, counts
from support.clients.response_calls import EVERYTHING, EXCLUSIVE, INPUT_TOKENS, OWN_TEMPLATE, RESPONSES, SHORT

MODEL_NAME = "lab/tiny"
HIDDEN_SIZE = 64
Vectors = list[list[float]]


@dataclass(frozen=True)
class Call:
    """`check` gets the answer: what its JSON holds, or its text."""

    operation: str
    path: str
    check: Callable[[Any], None] = field(repr=False)
    body: dict[str, Any] | None = None

    @property
    def method(self) -> str:
        """GET or POST."""
        return self.operation.partition(" ")[0]


def is_empty(content: Any) -> None:
    assert content == ""


def has(**expected: Any) -> Callable[[Any], None]:
    """These fields have these values."""

    def check(content: Any) -> None:
        assert {name: content[name] for name in expected} == expected

    return check


def counts_tokens(content: Any) -> None:
    assert content["count"] == len(content["tokens"]) > 0
    assert content["max_model_len"] == 1024


def spells_tokens(content: Any) -> None:
    counts_tokens(content)
    assert "".join(content["token_strs"]) == "the dog"


def lists_the_model(content: Any) -> None:
    assert [model["id"] for model in content["data"]] == [MODEL_NAME]


def lists_the_chain(content: Any) -> None:
    names = ["LogitBiasLogitsProcessor", "ForcesTokens", "ThinkingBudgetLogitsProcessor", "RaisesOnBoom"]
    assert [each["name"] for each in content["data"]] == names


def is_metrics(content: Any) -> None:
    assert "fastdeploy_lp:num_requests_running" in content


def nobody_was_found(content: Any) -> None:
    assert (content["status"], content["result"]) == ("success", {"aborted": [], "not_found": ["nobody"]})


def is_pooled(*shape: int) -> Callable[[Any], None]:
    """One input, with numbers in this shape."""

    def check(content: Any) -> None:
        (pooled,) = content["data"]
        assert pooled["shape"] == list(shape)
        numbers = pooled["data"]
        flat = np.frombuffer(base64.b64decode(numbers), "<f4") if isinstance(numbers, str) else np.ravel(numbers)
        assert flat.size == np.prod(shape)
        assert content["usage"]["prompt_tokens"] > 0

    return check


def is_response(content: Any) -> None:
    """Of two tokens at most, plain or as the last event of a stream."""
    if isinstance(content, str):
        content = json.loads(content.rpartition("data: ")[2])["response"]
    assert content["usage"]["output_tokens"] in (1, 2)
    assert content["status"] in ("completed", "incomplete")


def nothing_runs(content: Any) -> None:
    assert content["result"] == {"aborted": [], "not_found": []}


TOKENIZE = "POST /tokenize"
ABORT = "POST /v1/abort_requests"
POOLING = "POST /pooling"
CALLS = [
    Call("GET /health", "/health", is_empty),
    Call("GET /health/ready", "/health/ready", is_empty),
    Call("GET /health/live", "/health/live", is_empty),
    Call("GET /ping", "/ping", is_empty),
    Call("POST /ping", "/ping", is_empty),
    Call("GET /load", "/load", has(server_load=0, running=0, waiting=0)),
    Call("GET /version", "/version", has()),
    Call("GET /metrics", "/metrics", is_metrics),
    Call("GET /v1/models", "/v1/models", lists_the_model),
    Call("GET /v1/models/{model_id}", f"/v1/models/{MODEL_NAME}", has(id=MODEL_NAME, max_model_len=1024)),
    Call("GET /v1/logits_processors", "/v1/logits_processors", lists_the_chain),
    Call(
        "POST /v1/logits_processors/{name}/reset",
        "/v1/logits_processors/RaisesOnBoom/reset",
        has(name="RaisesOnBoom", state="ok"),
    ),
    Call(TOKENIZE, "/tokenize", spells_tokens, {"prompt": "the dog", "return_token_strs": True, "model": "default"}),
    Call(TOKENIZE, "/tokenize", counts_tokens, {"prompt": "the dog", "add_special_tokens": False}),
    Call(
        TOKENIZE,
        "/tokenize",
        counts_tokens,
        {"messages": CONVERSATION, "tools": [WEATHER], "chat_template_kwargs": {"enable_thinking": False}},
    ),
    Call(
        TOKENIZE,
        "/tokenize",
        counts_tokens,
        {
            "messages": [*USER, {"role": "assistant", "content": "So"}],
            "add_generation_prompt": False,
            "continue_final_message": True,
        },
    ),
    Call("POST /detokenize", "/detokenize", has(prompt="</s>"), {"tokens": [2], "model": "default"}),
    Call(
        POOLING,
        "/pooling",
        is_pooled(2, 8),
        {
            "model": "default",
            "input": [A, B],
            "task": "token_embed",
            "encoding_format": "base64",
            "dimensions": 8,
            "normalize": False,
            "user": "somebody",
            "request_id": "pooled-by-a-client",
            "truncate_prompt_tokens": 1000,
            "truncation_side": "left",
            "add_special_tokens": True,
            "timeout": 120,
        },
    ),
    Call(
        POOLING,
        "/pooling",
        is_pooled(HIDDEN_SIZE),
        {"messages": CONVERSATION, "add_generation_prompt": True, "pooling": "mean"},
    ),
    Call(
        "POST /v1/rerank",
        "/v1/rerank",
        has(id="rerank-by-a-client", results=[{"index": 1, "document": None, "relevance_score": 1.0}]),
        {
            "model": "default",
            "query": "some",
            "documents": [{"text": "another"}, {"text": "some"}],
            "top_n": 1,
            "return_documents": False,
            "dimensions": 8,
            "pooling": "last",
            "user": "somebody",
            "request_id": "by-a-client",
            "truncate_prompt_tokens": 1000,
            "truncation_side": "left",
            "add_special_tokens": True,
            "timeout": 120,
        },
    ),
    Call(
        "POST /v1/score",
        "/v1/score",
        has(id="score-by-a-client", object="list", data=[{"index": 0, "object": "score", "score": 1.0}]),
        {
            "model": "default",
            "text_1": "some",
            "text_2": ["some"],
            "dimensions": 8,
            "pooling": "last",
            "user": "somebody",
            "request_id": "by-a-client",
            "truncate_prompt_tokens": 1000,
            "truncation_side": "left",
            "add_special_tokens": True,
            "timeout": 120,
        },
    ),
    Call(f"POST {RESPONSES}", RESPONSES, is_response, EVERYTHING),
    *(Call(f"POST {RESPONSES}", RESPONSES, is_response, SHORT | fields) for fields in EXCLUSIVE),
    Call(f"POST {INPUT_TOKENS}", INPUT_TOKENS, has(object="response.input_tokens"), response_calls.COUNTED),
    Call(f"POST {INPUT_TOKENS}", INPUT_TOKENS, has(input_tokens=2), {"input": "the dog", **OWN_TEMPLATE}),
    *(Call(MESSAGES, "/v1/messages", case.check, case.body) for case in MESSAGE_CASES),
    Call(COUNT_TOKENS, "/v1/messages/count_tokens", counts, COUNTED),
    Call(
        COUNT_TOKENS,
        "/v1/messages/count_tokens",
        has(input_tokens=3),
        {"messages": USER, "chat_template": "abc"},
    ),
    Call(ABORT, "/v1/abort_requests", nobody_was_found, {"req_ids": ["nobody"]}),
    Call(ABORT, "/v1/abort_requests", nothing_runs, {"abort_all": True}),
]


@dataclass(frozen=True)
class EmbeddingCase:
    """`option` is one of `fields`; `check` gets the vectors with these fields and those without."""

    option: str
    fields: dict[str, Any]
    check: Callable[[Vectors, Vectors], None] = field(repr=False)

    @property
    def body(self) -> dict[str, Any]:
        """What is sent."""
        return EMBEDDING_BASE | self.fields


def vectors_of(body: dict[str, Any]) -> Vectors:
    """Of an answer, whose numbers may be in base64."""
    given = [each["embedding"] for each in body["data"]]
    return [np.frombuffer(base64.b64decode(x), "<f4").tolist() if isinstance(x, str) else x for x in given]


def same_vectors(found: Vectors, usual: Vectors) -> None:
    np.testing.assert_array_equal(np.float32(found), np.float32(usual))


def other_vectors(found: Vectors, usual: Vectors) -> None:
    assert np.shape(found) == np.shape(usual)
    assert np.abs(np.array(found) - np.array(usual)).max() > 1e-3


def number_of_vectors(count: int) -> Callable[[Vectors, Vectors], None]:
    def check(found: Vectors, _: Vectors) -> None:
        assert np.shape(found) == (count, HIDDEN_SIZE)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-5)

    return check


def first_numbers(found: Vectors, usual: Vectors) -> None:
    assert np.shape(found) == (1, 8)
    np.testing.assert_allclose(found[0] / np.linalg.norm(found), usual[0][:8] / np.linalg.norm(usual[0][:8]), atol=1e-5)


EMBEDDING_BASE: dict[str, Any] = {"model": "default", "input": "the dog sleeps"}
EMBEDDING_CASES = [
    EmbeddingCase("input", {"input": ["the dog", "the fox", "the dog"]}, number_of_vectors(3)),
    EmbeddingCase("input", {"input": [A, B]}, number_of_vectors(1)),
    EmbeddingCase("input", {"input": [[A], [A, B]]}, number_of_vectors(2)),
    EmbeddingCase("model", {"model": MODEL_NAME}, same_vectors),
    EmbeddingCase("encoding_format", {"encoding_format": "float"}, same_vectors),
    EmbeddingCase("encoding_format", {"encoding_format": "base64"}, same_vectors),
    EmbeddingCase("dimensions", {"dimensions": 8}, first_numbers),
    EmbeddingCase("truncate_prompt_tokens", {"truncate_prompt_tokens": 1}, other_vectors),
    EmbeddingCase("truncate_prompt_tokens", {"truncate_prompt_tokens": -1}, same_vectors),
    EmbeddingCase("truncation_side", {"truncation_side": "right", "truncate_prompt_tokens": 1}, other_vectors),
    EmbeddingCase("add_special_tokens", {"add_special_tokens": True}, same_vectors),
    EmbeddingCase("timeout", {"timeout": 120}, same_vectors),
    EmbeddingCase("user", {"user": "somebody"}, same_vectors),
    EmbeddingCase("pooling", {"pooling": "mean"}, other_vectors),
    EmbeddingCase("pooling", {"pooling": "last"}, same_vectors),
    EmbeddingCase("normalize", {"normalize": False}, other_vectors),
    EmbeddingCase("request_id", {"request_id": "of-a-client"}, same_vectors),
]
