"""A request's own time: the wait for a slot counts, and what is over frees its slot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import openai
import pytest
from support.chat import HELLO, chunks, metric, opened_stream, post, text_of, wait_for_running, wait_for_text
from support.errors import check_error
from support.server import ServerProcess, wait_until
from support.supervised import LONG

SLOTS = 4
SHORT: dict[str, Any] = {"messages": HELLO, "max_tokens": 4}
MANY_TOKENS = 30_000


@pytest.fixture
def server(lasting_server: ServerProcess) -> ServerProcess:
    return lasting_server


def check_timeout(answer: httpx.Response) -> None:
    assert answer.status_code == 408
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("timeout_error", "timeout", "timeout")
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("fields", [{}, {"n": 3}])
def test_a_request_ends_with_its_time_and_leaves_its_slots(server: ServerProcess, fields: dict[str, Any]) -> None:
    over = metric(server, "request_timeout_total")
    check_timeout(post(server, {**LONG, **fields, "timeout": 0.3}))
    wait_for_running(server, 0)
    assert metric(server, "kv_cache_blocks_used") == 0
    assert metric(server, "request_timeout_total") == over + 1


def test_prompts_of_one_body_share_its_time(server: ServerProcess) -> None:
    body = {"prompt": ["the dog", "the fox"], "max_tokens": MANY_TOKENS, "ignore_eos": True, "timeout": 0.3}
    check_timeout(httpx.post(f"{server.url}/v1/completions", json=body))
    wait_for_running(server, 0)


def test_a_stream_ends_with_an_event_behind_what_it_had(server: ServerProcess) -> None:
    with opened_stream(server, {**LONG, "timeout": 1.5}) as payloads:
        *parts, error = chunks(payloads)
    assert error["error"]["code"] == "timeout"
    assert text_of(parts)
    wait_for_running(server, 0)


def test_the_wait_for_a_slot_counts(server: ServerProcess) -> None:
    """Such a request never runs."""
    running: list[Iterator[str]] = []
    with ExitStack() as stack:
        for _ in range(SLOTS):
            # Kept, because httpx closes a stream that nobody holds.
            running.append(stack.enter_context(opened_stream(server, LONG)))
            wait_for_text(running[-1])
        counted = metric(server, "prompt_tokens_total")
        check_timeout(post(server, {**SHORT, "timeout": 0.3}))
        embedding = {"input": "the quick brown fox", "timeout": 0.3}
        check_timeout(httpx.post(f"{server.url}/v1/embeddings", json=embedding))
        assert metric(server, "prompt_tokens_total") > counted
        wait_until(lambda: metric(server, "num_requests_waiting") == 0, 30)
        assert metric(server, "num_requests_running") == SLOTS
    wait_for_running(server, 0)


def test_time_enough_changes_nothing(server: ServerProcess) -> None:
    fields = {"temperature": 1, "seed": 5}
    answers = [post(server, {**SHORT, **fields, **timeout}).json() for timeout in ({}, {"timeout": 60})]
    assert answers[0]["choices"] == answers[1]["choices"]


@pytest.mark.parametrize("timeout", [0, -1, -0.5, "5", True, [1]])
def test_what_is_no_time_is_refused(server: ServerProcess, timeout: object) -> None:
    assert check_error(post(server, {**SHORT, "timeout": timeout}), 400)["param"] == "timeout"


def test_the_official_client_does_not_send_it_again(server: ServerProcess) -> None:
    labels = {"method": "POST", "route": "/v1/chat/completions", "status": "408"}
    counted = metric(server, "http_requests_total", **labels)
    with (
        openai.Client(base_url=f"{server.url}/v1", api_key="EMPTY_API_KEY", max_retries=3) as client,
        pytest.raises(openai.APIStatusError) as failure,
    ):
        client.chat.completions.create(
            model="default",
            messages=HELLO,  # type: ignore[arg-type]
            max_tokens=MANY_TOKENS,
            extra_body={"timeout": 0.3, "ignore_eos": True},
        )
    assert failure.value.status_code == 408
    assert metric(server, "http_requests_total", **labels) == counted + 1
