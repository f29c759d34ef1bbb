"""Requests run again on a server, which may be of another kind."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from fastdeploy_lp.engine.client.logged_request import LoggedOutput, LoggedRequest
from fastdeploy_lp.entrypoints.replay.backends import ServerReplay
from fastdeploy_lp.entrypoints.replay.runner import ReplayError
from fastdeploy_lp.entrypoints.server_address import ServerAddress
from fastdeploy_lp.request.sampling_params import SamplingParams

REQUEST = LoggedRequest(0.0, "r", "e", [1], SamplingParams(seed=1, max_tokens=1), [])
CHOICE = {"index": 0, "token_ids": [5], "finish_reason": "length", "stop_reason": None}
SECONDS = 30.0


@contextmanager
def answering(answer: Any, together: int = 1) -> Iterator[str]:
    """A server that gives this answer once so many requests are in flight."""
    arrived = threading.Barrier(together)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            arrived.wait(SECONDS)
            content = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        # All may knock at once.
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("answer", [{}, {"choices": [{"index": 0, "text": "a"}]}, [], {"choices": None}])
def test_an_answer_without_token_ids_is_told(answer: Any) -> None:
    with answering(answer) as url, pytest.raises(ReplayError, match="gives no token ids"):
        asyncio.run(ServerReplay(ServerAddress(url), None, 1).outputs(REQUEST))


def test_as_many_requests_are_in_flight_as_are_asked_for() -> None:
    """More than the threads that an event loop has of its own."""
    many = 40

    async def run(url: str) -> list[list[LoggedOutput]]:
        backend = ServerReplay(ServerAddress(url), None, many)
        return await asyncio.gather(*(backend.outputs(REQUEST) for _ in range(many)))

    with answering({"choices": [CHOICE]}, together=many) as url:
        assert asyncio.run(run(url)) == [[LoggedOutput(0, [5], "length")]] * many
