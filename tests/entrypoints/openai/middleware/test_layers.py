"""CORS and the root path; what belongs to one layer alone is in that layer's tests."""

from __future__ import annotations

import httpx
import pytest
from support.errors import check_error
from support.guarded import AUTH, MODEL_NAME, ORIGIN, ROOT_PATH
from support.server import ServerProcess

PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}


def test_a_browser_may_ask_without_a_key(guarded_server: ServerProcess) -> None:
    url = f"{guarded_server.url}/v1/chat/completions"
    answer = httpx.options(url, headers={"Origin": ORIGIN, **PREFLIGHT})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert answer.headers["access-control-allow-credentials"] == "true"
    assert "authorization" in answer.headers["access-control-allow-headers"].lower()


def test_another_origin_may_not(guarded_server: ServerProcess) -> None:
    url = f"{guarded_server.url}/v1/chat/completions"
    answer = httpx.options(url, headers={"Origin": "https://other.example", **PREFLIGHT})
    assert answer.status_code == 400
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(("headers", "status"), [(AUTH, 200), ({}, 401)])
def test_pages_can_read_answers_and_refusals(
    guarded_server: ServerProcess, headers: dict[str, str], status: int
) -> None:
    answer = httpx.get(f"{guarded_server.url}/v1/models", headers={"Origin": ORIGIN, **headers})
    assert answer.status_code == status
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "X-Request-Id" in answer.headers["access-control-expose-headers"]


def test_origins_are_off_unless_asked_for(strict_server: ServerProcess) -> None:
    url = f"{strict_server.url}/v1/chat/completions"
    check_error(httpx.options(url, headers={"Origin": ORIGIN, **PREFLIGHT}), 405)
    answer = httpx.get(f"{strict_server.url}/v1/models", headers={"Origin": ORIGIN})
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("prefix", ["", ROOT_PATH])
def test_a_proxy_may_keep_the_root_path_or_not(guarded_server: ServerProcess, prefix: str) -> None:
    answer = httpx.get(f"{guarded_server.url}{prefix}/v1/models/{MODEL_NAME}", headers=AUTH)
    assert answer.json()["id"] == MODEL_NAME


def test_the_schema_tells_the_root_path(guarded_server: ServerProcess) -> None:
    schema = httpx.get(f"{guarded_server.url}/openapi.json", headers=AUTH).json()
    assert schema["servers"] == [{"url": ROOT_PATH}]
