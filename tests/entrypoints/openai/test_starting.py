"""While the model loads the server listens, and says that it is not ready."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from support.chat import HELLO, post
from support.errors import check_error
from support.server import ServerProcess, health, process_exists, wait_until
from support.supervised import wait_for_new_worker

SECONDS = 60.0
PROCESSOR = """
import os

from fastdeploy_lp.openai.logits_processor import LogitsProcessor


class Waits(LogitsProcessor):
    def __init__(self, fd_config):
        with open(os.environ["GATE"]) as gate:
            if gate.read() != "open":
                raise RuntimeError("the gate stays closed")

    def update_state(self, share_inputs):
        pass

    def apply(self, logits):
        return logits
"""


@contextmanager
def starting_server(folder: Path, checkpoint: Path, *options: str) -> Iterator[tuple[ServerProcess, Path]]:
    """A server that listens, whose worker is not ready until somebody writes into the gate."""
    (folder / "waits.py").write_text(PROCESSOR)
    gate = folder / "gate"
    os.mkfifo(gate)
    env = {"GATE": str(gate), "PYTHONPATH": str(folder)}
    server = ServerProcess(
        "--logits-processors", "waits:Waits", *options, model=str(checkpoint), own_metrics_port=False, env=env
    )
    server.launch()
    try:
        wait_until(lambda: health(server.url) is not None, SECONDS, lambda: server.log)
        yield server, gate
    finally:
        server.close()


def test_everything_that_needs_the_model_says_try_again(tmp_path: Path, tiny_checkpoint: Path) -> None:
    with starting_server(tmp_path, tiny_checkpoint) as (server, gate):
        for answer in (
            post(server, {"messages": HELLO}),
            httpx.post(f"{server.url}/v1/completions", json={"prompt": "Hi"}),
            httpx.post(f"{server.url}/tokenize", json={"prompt": "Hi"}),
            httpx.get(f"{server.url}/v1/models"),
            httpx.get(f"{server.url}/v1/logits_processors"),
            httpx.get(f"{server.url}/health"),
            httpx.post(f"{server.url}/ping"),
        ):
            assert check_error(answer, 503)["code"] == "engine_starting"
            assert answer.headers["retry-after"] == "1"
            assert answer.headers["x-request-id"]
        check_error(httpx.get(f"{server.url}/nowhere"), 404)
        for path in ("/metrics", "/version", "/openapi.json"):
            assert httpx.get(f"{server.url}{path}").status_code == 200
        assert "Serving" not in server.log
        gate.write_text("open")
        wait_until(lambda: health(server.url) == 200, SECONDS, lambda: server.log)
        wait_until(lambda: "Serving" in server.log, SECONDS)
        assert post(server, {"messages": HELLO, "max_tokens": 2}).status_code == 200


@pytest.mark.parametrize(
    ("number", "status"),
    # SIGTERM at this time is also in test_shutdown.py.
    [pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long), (signal.SIGINT, 130)],
)
def test_a_signal_ends_the_start(tmp_path: Path, tiny_checkpoint: Path, number: int, status: int) -> None:
    with starting_server(tmp_path, tiny_checkpoint) as (server, _):
        worker = wait_for_new_worker(server, ready=False)
        assert server.stop(number, SECONDS) == status
        wait_until(lambda: not process_exists(worker), SECONDS)
        assert "Traceback" not in server.log
