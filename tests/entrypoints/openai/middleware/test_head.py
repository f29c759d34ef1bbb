"""HEAD is answered as GET is, without the body."""

from __future__ import annotations

import httpx
import pytest
from support.guarded import AUTH
from support.server import ServerProcess


@pytest.mark.parametrize(
    "path", ["/health", "/ping", "/version", "/v1/models", "/openapi.json", "/v1/models/other", "/no"]
)
def test_head_is_get_without_a_body(guarded_server: ServerProcess, path: str) -> None:
    url = f"{guarded_server.url}{path}"
    head, get = httpx.head(url, headers=AUTH), httpx.get(url, headers=AUTH)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers["content-length"] == str(len(get.content))
    assert head.headers.get("content-type") == get.headers.get("content-type")


def test_head_needs_a_key_where_get_does(guarded_server: ServerProcess) -> None:
    assert httpx.head(f"{guarded_server.url}/v1/models").status_code == 401


def test_there_is_no_head_where_there_is_no_get(guarded_server: ServerProcess) -> None:
    answer = httpx.head(f"{guarded_server.url}/v1/completions", headers=AUTH)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def test_it_is_counted_as_what_it_is(guarded_server: ServerProcess) -> None:
    httpx.head(f"{guarded_server.url}/version", headers=AUTH)
    metrics = httpx.get(guarded_server.metrics_url, headers=AUTH).text
    assert 'http_requests_total{method="HEAD",route="/version",status="200"}' in metrics
