"""A bounded queue: past it requests are refused with status 429, and taken again when somebody has left."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from support.chat import HELLO, metric, opened_stream, post, wait_for_running, wait_for_text
from support.leftovers import PROCESS_SECONDS, REGISTERS, check_nothing_left
from support.server import ServerProcess, wait_until
from support.supervised import LONG, supervised_server

SHORT = {"messages": HELLO, "max_tokens": 2, "temperature": 0}


@pytest.fixture(scope="module", params=[pytest.param(0, marks=pytest.mark.long), 1], ids=["nobody waits", "one waits"])
def full_at(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, int]]:
    """A server with one slot, and how many sequences it takes; without a queue also in test_troubleshooting.py."""
    waiting: int = request.param
    options = ["--max-num-seqs", "1", "--max-waiting-requests", str(waiting)]
    options += ["--timeout-graceful-shutdown", "1", "--logits-processors", REGISTERS]
    with supervised_server(tmp_path_factory.mktemp("s"), *options) as server:
        yield server, 1 + waiting


def test_past_the_queue_requests_are_refused_until_somebody_leaves(full_at: tuple[ServerProcess, int]) -> None:
    server, room = full_at
    with opened_stream(server, LONG) as first:
        wait_for_text(first)
        if room == 2:
            with opened_stream(server, LONG):
                wait_until(lambda: metric(server, "num_requests_waiting") == 1, 30)
                check_refused(server)
            # The one that waited has left.
            wait_until(lambda: metric(server, "num_requests_waiting") == 0, 30)
            check_refused(server, n=2)
        else:
            check_refused(server)
        check_refused(server, stream=True, n=2)
        assert metric(server, "num_requests_running") == 1
    wait_for_running(server, 0)
    assert post(server, SHORT).status_code == 200


def check_refused(server: ServerProcess, **fields: object) -> None:
    answer = post(server, {**SHORT, **fields})
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) > 0
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("rate_limit_error", "rate_limit_exceeded", None)
    assert "max_waiting_requests" in error["message"]


def test_a_request_larger_than_the_queue_is_taken_alone(full_at: tuple[ServerProcess, int]) -> None:
    server, room = full_at
    answer = post(server, {**SHORT, "n": room + 3})
    assert len(answer.json()["choices"]) == room + 3


def test_many_prompts_are_taken_together_or_not_at_all(full_at: tuple[ServerProcess, int]) -> None:
    server, _ = full_at
    with openai.Client(base_url=f"{server.url}/v1", api_key="EMPTY_API_KEY", max_retries=0) as client:
        prompts = [[1, 2], [3, 4], [5, 6]]
        assert len(client.completions.create(model="default", prompt=prompts, max_tokens=1).choices) == 3
        with opened_stream(server, LONG) as running:
            wait_for_text(running)
            counted = metric(server, "prompt_tokens_total")
            with pytest.raises(openai.RateLimitError):
                client.completions.create(model="default", prompt=prompts, max_tokens=1)
            assert metric(server, "prompt_tokens_total") == counted
        wait_for_running(server, 0)


def test_embeddings_find_the_queue_full_as_well(full_at: tuple[ServerProcess, int]) -> None:
    server, room = full_at
    with openai.Client(base_url=f"{server.url}/v1", api_key="EMPTY_API_KEY", max_retries=0) as client:
        inputs = [[index + 1] for index in range(room + 3)]
        assert len(client.embeddings.create(model="default", input=inputs).data) == room + 3
        with opened_stream(server, LONG) as running:
            wait_for_text(running)
            counted = metric(server, "prompt_tokens_total")
            with pytest.raises(openai.RateLimitError) as refused:
                client.embeddings.create(model="default", input=inputs[: max(room, 2)])
            assert "max_waiting_requests" in refused.value.message
            assert metric(server, "prompt_tokens_total") == counted
        wait_for_running(server, 0)
        assert len(client.embeddings.create(model="default", input=inputs[:1]).data) == 1


def test_the_official_client_comes_back_by_itself(full_at: tuple[ServerProcess, int]) -> None:
    """It is refused while another request runs, which ends only then."""
    server, room = full_at
    refused = threading.Event()

    def note(response: Any) -> None:
        if response.status_code == 429:
            refused.set()

    with (
        openai.DefaultHttpxClient(event_hooks={"response": [note]}) as connection,
        openai.Client(
            base_url=f"{server.url}/v1", api_key="EMPTY_API_KEY", max_retries=20, http_client=connection
        ) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        with opened_stream(server, {**LONG, "n": room}) as running:
            wait_for_text(running)
            answer = pool.submit(client.chat.completions.create, model="default", messages=HELLO, max_tokens=1)  # type: ignore[arg-type]
            assert refused.wait(60)
        assert answer.result(60).choices


def test_what_is_not_done_in_time_ends_with_an_error(full_at: tuple[ServerProcess, int]) -> None:
    """Last: it ends the server."""
    server, _ = full_at
    worker_pid = server.worker_pid
    with opened_stream(server, LONG) as payloads:
        wait_for_text(payloads)
        os.kill(server.pid, signal.SIGTERM)
        rest = list(payloads)
    assert server.process is not None
    assert server.process.wait(PROCESS_SECONDS) in (0, -signal.SIGTERM)
    error = json.loads(rest[-2])["error"]
    assert error["code"] == "engine_down"
    assert "shutting down" in error["message"]
    assert rest[-1] == "[DONE]"
    assert "Traceback" not in server.log
    check_nothing_left(server, worker_pid)
