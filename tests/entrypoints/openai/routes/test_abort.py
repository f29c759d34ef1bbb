"""POST /v1/abort_requests: requests ended by somebody else than their clients."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from support.chat import ENDLESS, REQUEST_SECONDS, chat_url, chunks, metric, wait_for_running
from support.errors import check_error
from support.server import ServerProcess, wait_until

FIRST_TOKENS = "time_to_first_token_seconds_count"


def abort(server: ServerProcess, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/abort_requests", json=body)


def ask(server: ServerProcess, request_id: str) -> httpx.Response:
    """A plain answer that only an abort ends."""
    return httpx.post(chat_url(server), json=ENDLESS, headers={"X-Request-Id": request_id}, timeout=REQUEST_SECONDS)


def test_a_stream_ends_with_what_it_has_and_the_reason(server: ServerProcess) -> None:
    with httpx.stream("POST", chat_url(server), json={**ENDLESS, "stream": True}, timeout=REQUEST_SECONDS) as answer:
        payloads = (line.removeprefix("data: ") for line in answer.iter_lines() if line)
        first = json.loads(next(payloads))
        next(payloads)
        told = abort(server, req_ids=[first["id"], "nobody", "nobody"]).json()
        *_, last = chunks(payloads)
    assert last["choices"][0]["finish_reason"] == "abort"
    (aborted,) = told["result"]["aborted"]
    assert aborted["request_id"] == first["id"]
    assert aborted["output_token_count"] > 0
    assert told["result"]["not_found"] == ["nobody"]
    assert (told["status"], told["error_message"]) == ("success", None)
    wait_for_running(server, 0)


def test_only_the_named_plain_request_ends(server: ServerProcess) -> None:
    before, first_tokens = metric(server, "request_aborted_total"), metric(server, FIRST_TOKENS)
    with ThreadPoolExecutor(2) as pool:
        ended, other = pool.submit(ask, server, "to-be-ended"), pool.submit(ask, server, "other")
        # A sequence that runs may be at its prompt: both have a token first.
        wait_until(lambda: metric(server, FIRST_TOKENS) == first_tokens + 2, REQUEST_SECONDS)
        assert [each["request_id"] for each in abort(server, req_ids=["to-be-ended"]).json()["result"]["aborted"]] == [
            "to-be-ended"
        ]
        answer = ended.result(REQUEST_SECONDS)
        assert answer.json()["choices"][0]["finish_reason"] == "abort"
        assert answer.json()["usage"]["completion_tokens"] > 0
        assert not other.done()
        told = abort(server, abort_all=True).json()["result"]
        assert [each["request_id"] for each in told["aborted"]] == ["other"]
        assert other.result(REQUEST_SECONDS).json()["choices"][0]["finish_reason"] == "abort"
    wait_until(lambda: metric(server, "request_aborted_total") == before + 2, 10.0)


def test_embeddings_end_with_an_error_since_there_is_no_part_of_one(server: ServerProcess) -> None:
    before, taken = metric(server, "request_aborted_total"), metric(server, "requests_number_total")
    body = {"input": [[index + 1, 5] * 400 for index in range(32)], "pooling": "mean"}

    def embed(header: str, **fields: Any) -> httpx.Response:
        headers = {"X-Request-Id": header}
        url = f"{server.url}/v1/embeddings"
        return httpx.post(url, json=body | fields, headers=headers, timeout=REQUEST_SECONDS)

    with ThreadPoolExecutor(2) as pool:
        by_header, by_body = pool.submit(embed, "pooled"), pool.submit(embed, "unused", request_id="chosen")
        wait_until(lambda: metric(server, "requests_number_total") == taken + 2 * 32, REQUEST_SECONDS)
        told = abort(server, req_ids=["pooled", "embd-chosen"]).json()["result"]
        answers = [each.result(REQUEST_SECONDS) for each in (by_header, by_body)]
    aborted = {each["request_id"]: each["output_token_count"] for each in told["aborted"]}
    assert (aborted, told["not_found"]) == ({"pooled": 0, "embd-chosen": 0}, [])
    for answer in answers:
        error = check_error(answer, 499)
        assert error["code"] == "request_aborted"
    wait_until(lambda: waiting_or_running(server) == 0, 10.0)
    assert metric(server, "request_aborted_total") > before


def waiting_or_running(server: ServerProcess) -> float:
    return metric(server, "num_requests_running") + metric(server, "num_requests_waiting")


def test_nothing_runs_so_nothing_is_found(server: ServerProcess) -> None:
    wait_for_running(server, 0)
    assert abort(server, abort_all=True).json()["result"] == {"aborted": [], "not_found": []}
    assert abort(server, req_ids=["a", "b"]).json()["result"] == {"aborted": [], "not_found": ["a", "b"]}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "req_ids"),
        ({"req_ids": []}, "req_ids"),
        ({"req_ids": "all"}, "req_ids"),
        ({"req_ids": [5]}, "req_ids.0"),
        ({"abort_all": True, "req_ids": ["a"]}, "req_ids"),
        ({"abort_all": "yes"}, "abort_all"),
        ({"stop_all": True}, "stop_all"),
    ],
)
def test_what_does_not_say_which_is_refused(strict_server: ServerProcess, body: dict[str, Any], param: str) -> None:
    assert check_error(abort(strict_server, **body), 400)["param"] == param
