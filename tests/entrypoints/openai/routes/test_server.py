"""What tells of the server itself; /metrics is in test_metrics.py, /health without a worker in test_worker_death.py."""

from __future__ import annotations

import httpx
import pytest
from support.chat import ENDLESS, opened_stream, wait_for_running, wait_for_text
from support.server import ServerProcess, wait_until

from fastdeploy_lp import __version__


@pytest.mark.parametrize(("method", "path"), [("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")])
def test_healthy_server_says_so_without_a_body(strict_server: ServerProcess, method: str, path: str) -> None:
    answer = httpx.request(method, f"{strict_server.url}{path}")
    assert (answer.status_code, answer.content) == (200, b"")


def test_version_is_the_packages(strict_server: ServerProcess) -> None:
    assert httpx.get(f"{strict_server.url}/version").json() == {"version": __version__}


def test_load_counts_the_sequences_that_run(server: ServerProcess) -> None:
    def load() -> dict[str, int]:
        answer: dict[str, int] = httpx.get(f"{server.url}/load").json()
        return answer

    idle = {"server_load": 0, "running": 0, "waiting": 0}
    wait_for_running(server, 0)
    assert load() == idle
    with opened_stream(server, {**ENDLESS, "n": 2}) as payloads:
        wait_for_text(payloads)
        wait_until(lambda: load() == {"server_load": 2, "running": 2, "waiting": 0}, 10.0, load)
    wait_until(lambda: load() == idle, 10.0, load)


def test_every_declared_failure_is_an_error_of_its_api(strict_server: ServerProcess) -> None:
    """FastAPI would declare its own 422, which this server never gives."""
    schema = httpx.get(f"{strict_server.url}/openapi.json").json()
    bodies = {
        (path, method, status): [content["schema"] for content in response.get("content", {}).values()]
        for path, operations in schema["paths"].items()
        for method, operation in operations.items()
        for status, response in operation["responses"].items()
        if not status.startswith("2")
    }
    assert bodies
    for (path, *_), found in bodies.items():
        name = "MessagesError" if path.startswith("/v1/messages") else "ErrorResponse"
        assert found == [{"$ref": f"#/components/schemas/{name}"}], path
    assert not {status for _, _, status in bodies} & {"422"}
    assert not {"HTTPValidationError", "ValidationError"} & schema["components"]["schemas"].keys()
