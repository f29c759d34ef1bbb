"""LangChain's and LlamaIndex's clients, in an environment of their own, at the same strict server as all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.clients.calls import HIDDEN_SIZE, MODEL_NAME
from support.clients.case import CHAT, Route
from support.clients.chat_cases import CALL
from support.clients.failures import CLIENT_KEY
from support.clients.programs import CLIENTS, PYTHON, require, told_by
from support.clients.python_client import PythonAsker
from support.server import ServerProcess

TEXT = "It is sunny. <b>1 < 2</b>"
CALLED = [["get_weather", {"city": "Köln"}]]
RESULT = "22 C in Köln"


@pytest.fixture(scope="module")
def plan(served: ServerProcess, asker_of: Callable[[Route], PythonAsker]) -> dict[str, Any]:
    encode = asker_of(CHAT).encode
    scripts = {"text": encode(TEXT), "call": encode(CALL)}
    return {"url": served.url, "key": CLIENT_KEY, "model": MODEL_NAME, "scripts": scripts}


def told(program: str, plan: dict[str, Any]) -> dict[str, Any]:
    require("python", PYTHON)
    found: dict[str, Any] = told_by([str(PYTHON), str(CLIENTS / "programs" / program)], plan)
    return found


def check_chats(read: dict[str, Any], answers: list[dict[str, Any]]) -> None:
    """What both frameworks did: text, plain and in pieces, calls the same way, and on with their results."""
    for each in answers:
        assert (each["text"], each["calls"]) == (TEXT, [])
    assert read["streamed"]["pieces"] > 5
    for each in (read["called"], read["streamed call"]):
        assert (each["text"], each["calls"]) == ("", CALLED)
    assert read["streamed call"]["pieces"] > 5
    assert read["results"] == [RESULT]


def test_langchain(plan: dict[str, Any]) -> None:
    read = told("langchain_chat.py", plan)
    answers = [read["plain"], read["streamed"], read["answered"], *read["not blocking"], *read["batch"]]
    check_chats(read, answers)
    assert {each["reason"] for each in answers} == {"stop"}
    assert {each["tokens"] for each in answers} == {len(plan["scripts"]["text"]) + 1}
    assert {each["reason"] for each in (read["called"], read["streamed call"])} == {"tool_calls"}
    plain, streamed = read["completions"]
    assert plain == streamed
    assert plain
    assert read["vectors"] == [HIDDEN_SIZE, HIDDEN_SIZE]


def test_llama_index(plan: dict[str, Any]) -> None:
    read = told("llama_index_chat.py", plan)
    *texts, call = read["not blocking"]
    check_chats(read, [read["plain"], read["streamed"], read["answered"], *texts])
    assert call["calls"] == CALLED
    assert read["completions"] == [TEXT, TEXT]
