"""Frameworks and packages of clients, in an environment of their own, at the strict server of all others."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from support.clients.calls import HIDDEN_SIZE, MODEL_NAME
from support.clients.case import CHAT, Route
from support.clients.chat_cases import ARGUMENTS, CALL, THOUGHT
from support.clients.failures import CLIENT_KEY
from support.clients.generation_cases import END, A
from support.clients.programs import CLIENTS, PROGRAM_SECONDS, PYTHON, require, told_by
from support.clients.python_client import PythonAsker
from support.forced import AT_ONCE
from support.server import REPOSITORY, ServerProcess

TEXT = "It is sunny. <b>1 < 2</b>"
CALLED = [["get_weather", {"city": "Köln"}]]
RESULT = "22 C in Köln"


@pytest.fixture(scope="module")
def plan(served: ServerProcess, asker_of: Callable[[Route], PythonAsker]) -> dict[str, Any]:
    encode = asker_of(CHAT).encode
    scripts = {"text": encode(TEXT), "call": encode(CALL), "thought": encode(THOUGHT)}
    return {"url": served.url, "key": CLIENT_KEY, "model": MODEL_NAME, "scripts": scripts}


def told(program: str, plan: dict[str, Any]) -> dict[str, Any]:
    require("python", PYTHON)
    found: dict[str, Any] = told_by([str(PYTHON), str(CLIENTS / "programs" / program)], plan)
    return found


@pytest.fixture(scope="module")
def anthropic_read(plan: dict[str, Any]) -> dict[str, Any]:
    """What Anthropic's package read: one program asks for what two tests look at."""
    return told("anthropic_messages.py", plan)


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


def test_the_agents_sdk(plan: dict[str, Any]) -> None:
    # The tiny model's free text is noise without an end: here it says one token four times.
    own = {"logit_bias": {str(A): 50.0, str(END): 100.0}, "min_tokens": 4, **AT_ONCE}
    read = told("openai_agents.py", plan | {"own": own})
    for name, run in read.items():
        assert run["items"] == ["tool_call_item", "tool_call_output_item", "message_output_item"], name
        assert len(run["asked"]) == 1
        assert run["output"]
    assert len({run["output"] for run in read.values()}) == 1
    events = set(read["responses, streamed"]["events"])
    assert {"response.created", "response.output_text.delta", "response.function_call_arguments.done"} <= events


def test_litellm(plan: dict[str, Any]) -> None:
    read = told("litellm_calls.py", plan)
    texts = ("chat", "streamed", "response", "streamed response")
    assert {read[name] for name in texts} == {TEXT}
    assert read["call"] == CALLED[0]
    assert read["events"][0] == "response.created"
    assert read["events"][-1] == "response.completed"
    assert read["vector"] == HIDDEN_SIZE
    assert "temperature" in read["refusal"]


def test_instructor(plan: dict[str, Any]) -> None:
    read = told("instructor_models.py", plan)
    assert read.keys() == {"tools", "json schema", "responses"}
    for person in read.values():
        assert person["name"] in ("Ann", "Bob")
        assert person["age"] in (1, 2)


def test_anthropics_package(plan: dict[str, Any], anthropic_read: dict[str, Any]) -> None:
    read = anthropic_read
    answers = [read["plain"], read["bearer"], read["streamed"], read["loop"]["answer"], *read["not blocking"]]
    for each in answers:
        assert (each["blocks"], each["reason"], each["sequence"]) == ([["text", TEXT]], "end_turn", None)
        assert each["tokens"] == len(plan["scripts"]["text"]) + 1
    assert read["streamed"]["pieces"] > 5
    assert (read["events"][0], read["events"][-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert (read["stopped"]["reason"], read["stopped"]["sequence"]) == ("stop_sequence", "sunny")
    for each in read["thought"]:
        assert (each["blocks"], each["signed"]) == ([["thinking", "Hm."], ["text", "Yes."]], True)
    for each in read["called"]:
        assert (each["blocks"], each["reason"]) == ([["tool_use", ARGUMENTS]], "tool_use")
    assert (read["loop"]["results"], read["loop"]["turns"]) == ([RESULT], 3)
    assert read["runner"]["reasons"] == ["tool_use", "tool_use"]
    assert read["biased"] == [70, 70, 70]
    assert read["json"] == [["text", '"red"']]
    assert read["counted"] == read["input"]["input_tokens"] + read["input"]["cache_read_input_tokens"]


def test_anthropics_package_raises_its_errors(anthropic_read: dict[str, Any]) -> None:
    invalid, tool, stranger, model, failed, within = anthropic_read["errors"]
    assert invalid[:2] == ["BadRequestError", "invalid_request_error"]
    assert invalid[2].startswith("max_tokens: ")
    assert tool[2].startswith("tools.0.input_schema: ")
    assert stranger[:2] == ["AuthenticationError", "authentication_error"]
    assert model[:2] == ["NotFoundError", "not_found_error"]
    assert failed[:2] == ["InternalServerError", "api_error"]
    assert within[1] == "api_error"
    assert [each[3] for each in (stranger, model, failed)] == ["invalid_api_key", "model_not_found", "request_failed"]
    assert all(each[4] for each in (invalid, tool, stranger, model, failed, within))


def test_the_program_of_the_page_about_messages(server: ServerProcess) -> None:
    require("python", PYTHON)
    document = (REPOSITORY / "docs" / "messages.md").read_text()
    (program,) = re.findall(r"```python\n(import anthropic\n.*?)```", document, re.DOTALL)
    command = [str(PYTHON), "-c", program.replace("http://127.0.0.1:8180", server.url)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=PROGRAM_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    plain, again = done.stdout.splitlines()[0], done.stdout.partition("\n")[2].strip()
    assert "Paris" not in plain
    assert again.startswith(plain)
    assert again.endswith(("end_turn", "max_tokens"))
