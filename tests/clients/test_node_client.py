"""The real openai package for Node sends what the Python client sends, and reads the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import openai
import pytest
from support.clients.answer import answer_of
from support.clients.calls import CALLS, EMBEDDING_BASE, EMBEDDING_CASES, vectors_of
from support.clients.case import BASE, CHAT, STREAMED, USER, Case, Route
from support.clients.chat_cases import CALL, WEATHER
from support.clients.failures import CLIENT_KEY, FAILURES, Failure
from support.clients.programs import CLIENTS, NODE_MODULES, require, told_by
from support.clients.python_client import PythonAsker, dumped, plain
from support.clients.tables import CASES, REFUSED
from support.server import ServerProcess, free_port

AskerOf = Callable[[Route], PythonAsker]
ALL_FAILURES = [
    *FAILURES,
    *(Failure("BadRequestError", 400, None, param, route, BASE[route] | fields) for route, param, fields in REFUSED),
]
ENDLESS = {"model": "default", "messages": USER, "max_tokens": 900, "temperature": 0, "ignore_eos": True}


def planned(case: Case, route: Route, asker: PythonAsker) -> list[dict[str, Any]]:
    """The bodies of a case: without `stream`, and with it."""
    body = case.body(route, asker)
    ways = [body] if case.streamed is not True else []
    return [*ways, STREAMED | body] if case.streamed is not False else ways


@pytest.fixture(scope="module")
def plan(served: ServerProcess, asker_of: AskerOf) -> dict[str, Any]:
    bodies = [{"route": route, "body": body} for route, case in CASES for body in planned(case, route, asker_of(route))]
    bodies += [{"route": "/v1/embeddings", "body": case.body} for case in EMBEDDING_CASES]
    scripted = {"forced_tokens": asker_of(CHAT).encode(CALL)}
    return {
        "url": served.url,
        "key": CLIENT_KEY,
        "nowhere": f"http://127.0.0.1:{free_port()}",
        "bodies": bodies,
        "calls": [{"method": call.method, "path": call.path, "body": call.body} for call in CALLS],
        "failures": [asdict(failure) for failure in ALL_FAILURES],
        "endless": ENDLESS,
        "boom": {"logits_processors_args": {"boom": 3}},
        "plain": BASE[CHAT],
        "said": {"logits_processors_args": {"forced_tokens": asker_of(CHAT).encode("one two")}},
        "scripted": {
            "model": "default",
            "messages": USER,
            "tools": [WEATHER],
            "logits_processors_args": scripted,
            "stream": True,
        },
    }


@pytest.fixture(scope="module")
def told(plan: dict[str, Any]) -> dict[str, Any]:
    """What the package read."""
    require("npm", NODE_MODULES)
    found: dict[str, Any] = told_by(["node", str(CLIENTS / "node" / "every_option.mjs")], plan)
    return found


def test_every_option_does_what_it_says(told: dict[str, Any], asker_of: AskerOf, sdk: openai.Client) -> None:
    answers = iter(told["answers"])
    for route, case in CASES:
        asker = asker_of(route)
        for body in planned(case, route, asker):
            answer = answer_of(next(answers))
            case.check(answer, asker)
            if case.streamed is None:
                assert answer == plain(sdk, route, case.body(route, asker)), (route, case.name, body)
    usual = vectors_of(dumped(sdk.embeddings.create(**EMBEDDING_BASE)))
    for embedding in EMBEDDING_CASES:
        embedding.check(vectors_of(next(answers)[0]), usual)
    assert next(answers, None) is None


def test_other_routes_by_get_and_post(told: dict[str, Any]) -> None:
    for call, read in zip(CALLS, told["calls"], strict=True):
        assert read["status"] == 200, call
        call.check(read["content"])


def test_failures_are_errors_of_their_classes(told: dict[str, Any]) -> None:
    for failure, error in zip(ALL_FAILURES, told["failures"], strict=True):
        assert error["classes"] == [failure.raises or "APIError"], (failure, error)
        assert (error["status"], error["param"]) == (failure.status, failure.param), failure
        assert failure.code in (None, error["code"]), failure
        assert error["requestId"]


def test_requests_end_with_those_who_wait_for_them(told: dict[str, Any]) -> None:
    read = told["endless"]
    assert read["timedOut"]["classes"] == ["APIConnectionTimeoutError"]
    assert read["left"]["classes"] == ["APIUserAbortError"]
    assert (read["refused"]["classes"], read["refused"]["status"]) == (["RateLimitError"], 429)
    assert read["aborted"] == [8, 8, 16]


def test_an_abort_by_name_ends_a_stream(told: dict[str, Any]) -> None:
    read = told["abortedByName"]
    assert read["reason"] == "abort"
    assert [each["request_id"] for each in read["told"]["result"]["aborted"]] == ["to-be-ended"]


def test_a_failure_in_the_middle_of_a_stream_is_thrown_where_it_is_read(told: dict[str, Any]) -> None:
    error = told["brokenStream"]
    assert error["classes"] == ["APIError"]
    assert error["code"] == "request_failed"
    assert "RaisesOnBoom" in error["message"]


def test_the_packages_own_helpers(told: dict[str, Any], plan: dict[str, Any], asker_of: AskerOf) -> None:
    read = told["helpers"]
    assert read["text"] == asker_of(CHAT).answer().choice.text
    assert read["requestIds"] == ["node-1"] * 3
    assert read["listed"] == [read["retrieved"]]
    assert (read["missing"]["classes"], read["missing"]["code"]) == (["NotFoundError"], "model_not_found")
    assert read["unreachable"]["classes"] == ["APIConnectionError"]
    (choice,) = read["final"]["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == ("get_weather", '{"city": "Köln"}')


def test_responses_are_streamed_stored_and_deleted(told: dict[str, Any]) -> None:
    read = told["responses"]
    assert read["texts"] == ["one two"] * 3
    assert (read["events"][0], read["events"][-1]) == ("response.created", "response.completed")
    # Two pages.
    assert read["items"] == ["message", "message", "message"]
    assert (read["gone"]["classes"], read["gone"]["code"]) == (["NotFoundError"], "response_not_found")
