"""Phases over HTTP: forms after reasoning, processors in a part of the output, and refusals that name the field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.chat import HELLO, chunks, encode, opened_stream, post
from support.forced import says
from support.server import ServerProcess

THOUGHT = "\nHm, 🤔 {1}?\n"
REASONED = f"<think>{THOUGHT}</think>"
SCHEMA = {"type": "object", "properties": {"n": {"enum": [12, 345]}}, "required": ["n"], "additionalProperties": False}
FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
FORMS: dict[str, dict[str, Any]] = {
    "response_format": FORMAT,
    "guided_json": {"guided_json": SCHEMA},
    "guided_choice": {"guided_choice": ['{"n": 12}', '{"n":345}']},
}


def ask(server: ServerProcess, text: str, **fields: Any) -> dict[str, Any]:
    answer = post(server, {"messages": HELLO, "max_tokens": 60, "temperature": 0, **says(text), **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def streamed(server: ServerProcess, text: str, name: str, **fields: Any) -> str:
    with opened_stream(
        server, {"messages": HELLO, "max_tokens": 60, "temperature": 0, **says(text), **fields}
    ) as payloads:
        return "".join(choice["delta"].get(name) or "" for part in chunks(payloads) for choice in part["choices"])


@pytest.mark.parametrize("form", FORMS)
def test_the_answer_after_reasoning_has_the_form(scripted_server: ServerProcess, form: str) -> None:
    """The model would write text: the form is the answer's, and reasoning is free."""
    text, fields = f"{REASONED}Sure!", FORMS[form]
    (choice,) = ask(scripted_server, text, logprobs=True, **fields)["choices"]
    assert choice["message"]["reasoning_content"] == THOUGHT
    assert json.loads(choice["message"]["content"])["n"] in (12, 345)
    assert choice["finish_reason"] == "stop"
    assert len(choice["logprobs"]["content"]) > len(encode(REASONED))
    for name in ("reasoning_content", "content"):
        assert streamed(scripted_server, text, name, **fields) == choice["message"][name]


def test_each_of_several_completions_has_the_form(scripted_server: ServerProcess) -> None:
    choices = ask(scripted_server, f"{REASONED}Sure!", n=3, temperature=1.0, **FORMAT)["choices"]
    assert [json.loads(choice["message"]["content"])["n"] in (12, 345) for choice in choices] == [True] * 3


def test_a_required_call_comes_after_reasoning(scripted_server: ServerProcess) -> None:
    text, fields = f"{REASONED}Sure!", {"tools": [WEATHER], "tool_choice": "required"}
    (choice,) = ask(scripted_server, text, **fields)["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["message"]["reasoning_content"] == THOUGHT
    assert json.loads(call["function"]["arguments"])["n"] in (12, 345)
    assert streamed(scripted_server, text, "reasoning_content", **fields) == THOUGHT


def test_an_answer_without_reasoning_has_the_form_at_once(scripted_server: ServerProcess) -> None:
    (choice,) = ask(scripted_server, '{"n": 12}', **FORMAT)["choices"]
    assert choice["message"] == {"role": "assistant", "content": '{"n": 12}', "refusal": None}


def test_a_form_from_the_first_token_on_has_no_reasoning_before_it(scripted_server: ServerProcess) -> None:
    (choice,) = ask(scripted_server, f"{REASONED}Sure!", guided_when={"after_tokens": 0}, **FORMAT)["choices"]
    assert "reasoning_content" not in choice["message"]
    assert json.loads(choice["message"]["content"])["n"] in (12, 345)


def test_a_form_may_wait_for_a_text(scripted_server: ServerProcess) -> None:
    (choice,) = ask(scripted_server, "So, the answer: yes.", guided_when={"after": "answer:"}, **FORMAT)["choices"]
    before, _, answer = choice["message"]["content"].partition("answer:")
    assert before == "So, the "
    assert json.loads(answer)["n"] in (12, 345)


def test_a_processor_works_in_its_phase(scripted_server: ServerProcess) -> None:
    """Outside of its phase the model writes by itself."""
    own = ask(scripted_server, "", logits_processors_args=None, max_tokens=1)["choices"][0]["message"]["content"]
    entry = {"name": "ForcesTokens", "params": {"forced_tokens": encode("one two red blue")}}
    for when, text in (({"after_tokens": 1}, f"{own} two red blue"), ({"before": "two"}, "one two")):
        fields = {"logits_processors_args": None, "logits_processors": [{**entry, "when": when}], "max_tokens": 9}
        content = ask(scripted_server, "", **fields)["choices"][0]["message"]["content"]
        assert content.startswith(text)
        assert ("red" in content) == ("red" in text)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"guided_when": {"in": "answer"}}, "guided_when", "only allowed with a field that asks for a form"),
    ({**FORMAT, "guided_when": {}}, "guided_when", "must be an object with at least one of"),
    ({**FORMAT, "guided_when": {"in": "thoughts"}}, "guided_when.in", "is none of reasoning, answer, tool_call"),
    ({**FORMAT, "guided_when": {"after": ""}}, "guided_when.after", "must be a text"),
    ({"tools": [WEATHER], "guided_when": {"after": "x"}}, "guided_when", "no tool is strict or required"),
    (
        {"logits_processors": [{"name": "ForcesTokens", "when": {"after_tokens": -1}}]},
        "logits_processors.0.when.after_tokens",
        "must be an integer from 0",
    ),
    (
        {"logits_processors": [{"name": "ForcesTokens", "when": "later"}]},
        "logits_processors.0.when",
        "must be an object",
    ),
    (
        {"logits_processors": [{"name": "ForcesTokens", "where": {}}]},
        "logits_processors.0.where",
        "an entry has name, params, when and shadow",
    ),
]


@pytest.mark.parametrize(("fields", "param", "reason"), REFUSED, ids=str)
def test_a_wrong_phase_is_refused(
    scripted_server: ServerProcess, fields: dict[str, Any], param: str, reason: str
) -> None:
    answer = post(scripted_server, {"messages": HELLO, **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert reason in error["message"]
