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
from support.processes import process_exists
from support.server import ServerProcess, health, wait_until
from support.supervised import wait_for_new_worker

SECONDS = 60.0
PROCESSOR = """
import os

from fastdeploy_lp.openai.logits_processor import LogitsProcessor


class Waits(LogitsProcessor):
    def __init__(self, fd_config):
        with open(os.environ["GATE"]):
            raise RuntimeError("the gate stays closed")

    def update_state(self, share_inputs):
        pass

    def apply(self, logits):
        return logits
"""


def check_that_it_ends(server: ServerProcess, number: int, status: int) -> None:
    """The worker that loads the model ends as well."""
    worker = wait_for_new_worker(server, ready=False)
    assert server.stop(number, SECONDS) == status
    wait_until(lambda: not process_exists(worker), SECONDS)
    assert "Traceback" not in server.log


@contextmanager
def starting_server(folder: Path, checkpoint: Path, *options: str) -> Iterator[ServerProcess]:
    """A server that listens, and whose worker waits for a gate that nothing opens."""
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
        yield server
    finally:
        server.close()


def test_everything_that_needs_the_model_says_try_again_until_a_signal_ends_the_start(
    tmp_path: Path, tiny_checkpoint: Path
) -> None:
    """That a start ends with answers is seen at each server of a test."""
    with starting_server(tmp_path, tiny_checkpoint) as server:
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
        check_that_it_ends(server, signal.SIGINT, 130)


@pytest.mark.long
def test_sigterm_ends_the_start(tmp_path: Path, tiny_checkpoint: Path) -> None:
    """Also in test_shutdown.py."""
    with starting_server(tmp_path, tiny_checkpoint) as server:
        check_that_it_ends(server, signal.SIGTERM, 143)
