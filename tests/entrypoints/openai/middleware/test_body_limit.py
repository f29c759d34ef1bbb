"""Bodies larger than the bound get a 413, whether they say their size or not."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from support.errors import check_error
from support.guarded import AUTH, MAX_BODY_SIZE
from support.server import ServerProcess

HEADERS = {"Content-Type": "application/json", **AUTH}


def body_of(size: int) -> bytes:
    """A body of exactly so many bytes that /tokenize takes."""
    empty = json.dumps({"prompt": ""})
    return json.dumps({"prompt": "a" * (size - len(empty))}).encode()


def in_chunks(content: bytes) -> Iterator[bytes]:
    """Sent as it comes, without a size in front."""
    for start in range(0, len(content), 1000):
        yield content[start : start + 1000]


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("excess", "status"), [(0, 200), (1, 413), (5_000_000, 413)])
def test_the_bound_is_exact(guarded_server: ServerProcess, chunked: bool, excess: int, status: int) -> None:
    content = body_of(MAX_BODY_SIZE + excess)
    answer = httpx.post(
        f"{guarded_server.url}/tokenize", content=in_chunks(content) if chunked else content, headers=HEADERS
    )
    assert answer.status_code == status
    if status == 413:
        error = check_error(answer, 413)
        assert error["code"] == "request_too_large"
        assert str(MAX_BODY_SIZE) in error["message"]


def test_the_connection_can_be_used_again(guarded_server: ServerProcess) -> None:
    with httpx.Client(base_url=guarded_server.url, headers=HEADERS) as client:
        for _ in range(3):
            check_error(client.post("/tokenize", content=body_of(MAX_BODY_SIZE + 100_000)), 413)
            assert client.post("/tokenize", content=body_of(100)).status_code == 200


def test_the_key_is_asked_for_first(guarded_server: ServerProcess) -> None:
    content = body_of(MAX_BODY_SIZE + 1)
    check_error(httpx.post(f"{guarded_server.url}/tokenize", content=content), 401)
