"""The example application, served as its docstring says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from urllib.error import URLError
from urllib.request import urlopen

import httpx
import pytest
from support.server import REPOSITORY, free_port, server_environment, wait_until

SECONDS = 60.0


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "--app-dir", "examples", "fastapi_app:app", "--port", str(port)]
    address = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        command, cwd=REPOSITORY, env=server_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def is_up() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"the example ended with status {process.returncode}")
        try:
            urlopen(f"{address}/openapi.json").close()
        except URLError:
            return False
        return True

    try:
        wait_until(is_up, SECONDS)
        yield address
    finally:
        process.terminate()
        assert process.wait(SECONDS) in (0, -15)


def test_plain_and_streamed_answers_are_the_same(url: str) -> None:
    question = {"question": "What is the capital of France?"}
    whole = httpx.get(f"{url}/answer", params=question, timeout=SECONDS)
    assert whole.status_code == 200
    assert whole.json()["text"]
    assert "Paris" not in whole.json()["text"]
    with httpx.stream("GET", f"{url}/stream", params=question, timeout=SECONDS) as response:
        parts = list(response.iter_text())
    assert "".join(parts) == whole.json()["text"]
    assert len(parts) > 1


def test_a_bad_request_names_the_field(url: str) -> None:
    refused = httpx.get(f"{url}/answer", params={"question": "Hi", "max_tokens": -1}, timeout=SECONDS)
    assert refused.status_code == 400
    assert refused.json()["detail"].startswith("max_tokens:")
