"""A worker that is killed: every client is told at once, and the API process stays answerable and stoppable."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest
from support.chat import ENDLESS, HELLO, chat_url, metric, opened_stream, post, wait_for_running, wait_for_text
from support.server import ServerProcess, health, process_exists, wait_until

TOLD_SECONDS = 2.0


@dataclass
class Death:
    """What clients of a server saw whose worker was killed under them, and after how long."""

    server: ServerProcess
    worker_pid: int
    temporary: Path
    sdk_stream: tuple[BaseException | None, float]
    raw_stream: tuple[list[str], float]
    plain: tuple[httpx.Response, float]
    embeddings: tuple[httpx.Response, float]


@pytest.fixture(scope="module")
def death(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Death]:
    """Kills the worker in the middle of two streams, a plain request and embeddings."""
    temporary = tmp_path_factory.mktemp("t")
    with ServerProcess(env={"TMPDIR": str(temporary)}) as server, ThreadPoolExecutor(4) as pool:

        def read_with_the_sdk() -> tuple[BaseException | None, float]:
            try:
                with openai.Client(base_url=f"{server.url}/v1", api_key="EMPTY_API_KEY", max_retries=0) as client:
                    fields = {**ENDLESS, "extra_body": {"ignore_eos": ENDLESS["ignore_eos"]}}
                    del fields["ignore_eos"]
                    for _ in client.chat.completions.create(model="default", stream=True, **fields):
                        pass
            except openai.APIError as error:
                return error, time.monotonic()
            return None, time.monotonic()

        def read_raw() -> tuple[list[str], float]:
            with opened_stream(server, ENDLESS) as payloads:
                wait_for_text(payloads)
                rest = list(payloads)
            return rest, time.monotonic()

        def wait_for_the_answer() -> tuple[httpx.Response, float]:
            answer = post(server, ENDLESS)
            return answer, time.monotonic()

        def wait_for_embeddings() -> tuple[httpx.Response, float]:
            inputs = [[index + 1] * 400 for index in range(500)]
            answer = httpx.post(f"{server.url}/v1/embeddings", json={"input": inputs}, timeout=60)
            return answer, time.monotonic()

        sdk, raw = pool.submit(read_with_the_sdk), pool.submit(read_raw)
        plain = pool.submit(wait_for_the_answer)
        wait_for_running(server, 3)
        embeddings = pool.submit(wait_for_embeddings)
        wait_until(lambda: metric(server, "num_requests_waiting") > 0, 30)
        worker_pid = server.worker_pid
        killed = time.monotonic()
        os.kill(worker_pid, signal.SIGKILL)
        (error, sdk_at), (rest, raw_at), (answer, plain_at) = sdk.result(60), raw.result(60), plain.result(60)
        vectors, vectors_at = embeddings.result(60)
        yield Death(
            server,
            worker_pid,
            temporary,
            sdk_stream=(error, sdk_at - killed),
            raw_stream=(rest, raw_at - killed),
            plain=(answer, plain_at - killed),
            embeddings=(vectors, vectors_at - killed),
        )


def test_stream_ends_with_an_error_at_once(death: Death) -> None:
    error, seconds = death.sdk_stream
    assert isinstance(error, openai.APIError)
    assert "engine is down" in error.message
    assert error.type == "server_error"
    assert error.code == "engine_down"
    assert seconds < TOLD_SECONDS


def test_stream_is_complete_behind_the_error(death: Death) -> None:
    rest, seconds = death.raw_stream
    assert '"error"' in rest[-2]
    assert rest[-1] == "[DONE]"
    assert seconds < TOLD_SECONDS


@pytest.mark.parametrize("kind", ["plain", "embeddings"])
def test_plain_request_in_flight_is_unavailable(death: Death, kind: str) -> None:
    answer, seconds = getattr(death, kind)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "engine_down"
    assert answer.json()["error"]["type"] == "server_error"
    assert seconds < TOLD_SECONDS


def test_health_says_unavailable(death: Death) -> None:
    assert health(death.server.url) == 503
    assert httpx.get(f"{death.server.url}/health").json()["error"]["code"] == "engine_down"


def test_new_requests_are_unavailable(death: Death) -> None:
    for body in ({"messages": HELLO}, {"messages": HELLO, "stream": True}):
        answer = httpx.post(chat_url(death.server), json=body)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "engine_down"


def test_invalid_requests_are_still_told_so(death: Death) -> None:
    assert post(death.server, {"messages": HELLO, "temperature": -1}).status_code == 400


def test_nothing_counts_as_running(death: Death) -> None:
    assert metric(death.server, "num_requests_running") == 0
    assert metric(death.server, "num_requests_waiting") == 0


def test_log_says_what_happened(death: Death) -> None:
    assert "engine down" in death.server.log
    assert "-9" in death.server.log
    assert "Traceback" not in death.server.log


def test_stops_on_sigterm_and_leaves_nothing(death: Death) -> None:
    """Last: it ends the server that the other tests ask."""
    assert not process_exists(death.worker_pid)
    assert death.server.stop(seconds=10) in (0, -signal.SIGTERM)
    wait_until(lambda: not list(death.temporary.glob("fastdeploy_lp-*")), 1)
