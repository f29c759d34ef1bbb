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
    before = metric(server, "request_aborted_total")
    with ThreadPoolExecutor(2) as pool:
        ended, other = pool.submit(ask, server, "to-be-ended"), pool.submit(ask, server, "other")
        wait_for_running(server, 2)
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
