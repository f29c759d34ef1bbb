"""POST /v1/rerank and POST /v1/score, held against the vectors of POST /v1/embeddings."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
from support.chat import REQUEST_SECONDS
from support.server import ServerProcess

QUERY = "A cat sits on the mat."
DOCUMENTS = ["Stock prices fell sharply today.", "The kitten lies on the rug.", QUERY, "北京 🎉"]


def ask(server: ServerProcess, path: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    answer = httpx.post(f"{server.url}{path}", json=body, timeout=REQUEST_SECONDS)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


def vectors(server: ServerProcess, texts: list[str]) -> np.ndarray:
    answer = ask(server, "/v1/embeddings", {"input": texts})
    return np.array([each["embedding"] for each in answer["data"]])


def test_documents_are_sorted_by_the_cosine_of_their_embeddings(strict_server: ServerProcess) -> None:
    answer = ask(strict_server, "/v1/rerank", {"query": QUERY, "documents": DOCUMENTS})
    cosines = vectors(strict_server, DOCUMENTS) @ vectors(strict_server, [QUERY])[0]
    results = answer["results"]
    assert [each["index"] for each in results] == np.argsort(-cosines, kind="stable").tolist()
    assert results[0]["index"] == 2
    for each in results:
        assert each["relevance_score"] == pytest.approx(cosines[each["index"]], abs=1e-5)
        assert each["document"] == {"text": DOCUMENTS[each["index"]]}
    tokens = ask(strict_server, "/v1/embeddings", {"input": [QUERY, *DOCUMENTS]})["usage"]
    assert answer["usage"] == tokens


def test_the_first_results_alone_and_without_their_texts(strict_server: ServerProcess) -> None:
    body = {"query": QUERY, "documents": [{"text": text} for text in DOCUMENTS], "return_documents": False}
    whole = ask(strict_server, "/v1/rerank", body)["results"]
    assert ask(strict_server, "/v1/rerank", body | {"top_n": 2})["results"] == whole[:2]
    assert ask(strict_server, "/v1/rerank", body | {"top_n": 100})["results"] == whole
    assert {each["document"] for each in whole} == {None}


def test_equal_documents_keep_their_order(strict_server: ServerProcess) -> None:
    results = ask(strict_server, "/v1/rerank", {"query": "x", "documents": ["same"] * 5})["results"]
    assert [each["index"] for each in results] == list(range(5))


@pytest.mark.parametrize(("first", "pairs"), [(QUERY, 4), ([QUERY], 4), (DOCUMENTS[::-1], 4), ("one", 1)])
def test_scores_are_cosines_of_pairs(strict_server: ServerProcess, first: str | list[str], pairs: int) -> None:
    second = DOCUMENTS if pairs == 4 else "other"
    answer = ask(strict_server, "/v1/score", {"text_1": first, "text_2": second})
    left, right = ([each] if isinstance(each, str) else each for each in (first, second))
    expected = (vectors(strict_server, list(left)) * vectors(strict_server, list(right))).sum(axis=1)
    assert [each["index"] for each in answer["data"]] == list(range(pairs))
    assert [each["score"] for each in answer["data"]] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/rerank", {"query": "", "documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["a"] * 5000}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["a", ""]}, "documents.1"),
        ("/v1/rerank", {"query": "a", "documents": ["a", "long " * 3000]}, "documents.1"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "dimensions": 10**6}, "dimensions"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ("/v1/score", {"text_1": "a"}, "text_2"),
        ("/v1/score", {"text_1": "a", "text_2": ["b", "long " * 3000]}, "text_2.1"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "model": 5}, "model"),
    ],
)
def test_what_cannot_be_compared_is_named(
    strict_server: ServerProcess, path: str, body: dict[str, Any], param: str
) -> None:
    error = ask(strict_server, path, body, 400)["error"]
    assert error["param"] == param, error


def test_another_model_is_not_found(strict_server: ServerProcess) -> None:
    body = {"query": "a", "documents": ["a"], "model": "gpt-4"}
    assert ask(strict_server, "/v1/rerank", body, 404)["error"]["code"] == "model_not_found"
