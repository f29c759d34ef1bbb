"""With `--on-worker-failure exit`: every client is told at once, and the server ends and says why."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest
from support.chat import HELLO, metric, opened_stream, post, wait_for_running, wait_for_text
from support.errors import check_error
from support.processes import process_exists
from support.server import ServerProcess, wait_until
from support.supervised import LONG, kill_worker, supervised_server, wait_for_new_worker

TOLD_SECONDS = 20.0
ENDED_SECONDS = 20.0


@dataclass
class Death:
    """What clients of a server saw whose worker was killed under them, and after how long."""

    server: ServerProcess
    worker_pid: int
    sdk_stream: tuple[BaseException | None, float]
    raw_stream: tuple[list[str], float]
    plain: tuple[httpx.Response, float]
    embeddings: tuple[httpx.Response, float]


@pytest.fixture(scope="module")
def death(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Death]:
    """Kills the worker in the middle of two streams and plain requests, while an embedding waits."""
    folder = tmp_path_factory.mktemp("d")
    with supervised_server(folder, "--on-worker-failure", "exit") as server, ThreadPoolExecutor(5) as pool:

        def read_with_the_sdk() -> tuple[BaseException | None, float]:
            try:
                with openai.Client(base_url=f"{server.url}/v1", api_key="EMPTY_API_KEY", max_retries=0) as client:
                    fields = {**LONG, "extra_body": {"ignore_eos": LONG["ignore_eos"]}}
                    del fields["ignore_eos"]
                    for _ in client.chat.completions.create(model="default", stream=True, **fields):
                        pass
            except openai.APIError as error:
                return error, time.monotonic()
            return None, time.monotonic()

        def read_raw() -> tuple[list[str], float]:
            with opened_stream(server, LONG) as payloads:
                wait_for_text(payloads)
                rest = list(payloads)
            return rest, time.monotonic()

        def wait_for_the_answer() -> tuple[httpx.Response, float]:
            answer = post(server, LONG)
            return answer, time.monotonic()

        def wait_for_embeddings() -> tuple[httpx.Response, float]:
            answer = httpx.post(f"{server.url}/v1/embeddings", json={"input": "the quick brown fox"})
            return answer, time.monotonic()

        sdk, raw = pool.submit(read_with_the_sdk), pool.submit(read_raw)
        plain, _ = pool.submit(wait_for_the_answer), pool.submit(wait_for_the_answer)
        wait_for_running(server, 4)
        embeddings = pool.submit(wait_for_embeddings)
        wait_until(lambda: metric(server, "num_requests_waiting") > 0, 30)
        killed = time.monotonic()
        worker_pid = kill_worker(server)
        (error, sdk_at), (rest, raw_at), (answer, plain_at) = sdk.result(60), raw.result(60), plain.result(60)
        vectors, vectors_at = embeddings.result(60)
        yield Death(
            server,
            worker_pid,
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


def test_the_server_ends_and_says_why(death: Death) -> None:
    assert death.server.process is not None
    assert death.server.process.wait(ENDED_SECONDS) == 1
    (line,) = [line for line in death.server.log.splitlines() if line.startswith("error: ")]
    assert "SIGKILL" in line
    assert "-9" in line
    assert "Traceback" not in death.server.log


def test_nothing_is_left(death: Death) -> None:
    """Behind the test above, which waits for the end."""
    assert not process_exists(death.worker_pid)
    assert list(Path(death.server.environment["TMPDIR"]).glob("fastdeploy_lp-*")) == []
    # As a whole number: other processes of the machine leave entries, too.
    own = re.compile(rf"(?<!\d){death.worker_pid}(?!\d)")
    assert [name for name in os.listdir("/dev/shm") if own.search(name)] == []


def test_a_server_whose_workers_keep_ending_ends_as_well(tmp_path: Path) -> None:
    """A restart is tried, and the last cause told. A failure that a processor explains does not count."""
    poison = {"messages": HELLO, "max_tokens": 8, "logits_processors_args": {"deadly": "exit"}}
    options = ["--logits-processors", "support.deadly:Deadly", "--max-worker-restarts", "1"]
    with supervised_server(tmp_path, *options) as server:
        check_error(post(server, poison), 500)
        wait_for_new_worker(server, kill_worker(server))
        kill_worker(server)
        assert server.process is not None
        assert server.process.wait(ENDED_SECONDS) == 1
        (line,) = [line for line in server.log.splitlines() if line.startswith("error: ")]
        assert "too often" in line
        assert "SIGKILL" in line
