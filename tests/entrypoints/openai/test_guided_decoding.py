"""Outputs that have a form, over HTTP, from a model that wants to write no such thing.

16 JSON Schemas by default; FASTDEPLOY_LP_GUIDED_SCHEMAS asks for more.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from jsonschema import Draft202012Validator
from support.chat import HELLO, MODEL, chunks, encode, opened_stream, post, text_of
from support.forced import AT_ONCE, says
from support.json_schemas import random_schema
from support.server import ServerProcess

SCHEMAS = int(os.environ.get("FASTDEPLOY_LP_GUIDED_SCHEMAS", "16"))
NUM_CLIENTS = 16
ASK = [{"role": "user", "content": "Make up a short record, as JSON."}]
# Raised in every other request, by more than the model's logits differ; forbidden nearly everywhere.
PUSHED = [token for text in ("Hello", "}", '"', "]", "=", "<|im_end|>") for token in encode(text)]
COMPACT = {"x-guidance": {"whitespace_flexible": False}}
PERSON = {
    **COMPACT,
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
REGEXES = [
    r"[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]",
    r"([a-z]{1,8} ){2}[a-z]{1,8}\.",
    r"(Paris|Rome), [A-Z][a-z]{2,10}",
    r"#[0-9a-f]{6}",
    r"[äöü]{3}🏙?",
    r"(25[0-5]|1?[0-9]{1,2})(\.[0-9]{1,2}){3}",
]


@pytest.fixture(scope="module")
def server(light_server: ServerProcess) -> ServerProcess:
    """No test here needs sense."""
    return light_server


def answer(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    """The one choice of a request."""
    response = post(server, {"messages": ASK, "max_tokens": 250, **fields})
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    found: dict[str, Any] = choice
    return found


def refusal(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    response = post(server, {"messages": HELLO, "max_tokens": 1, **fields})
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    assert error["message"].startswith(f"{error['param']}: ")
    return error


def together(work: Callable[[int], Any], count: int) -> list[Any]:
    with ThreadPoolExecutor(NUM_CLIENTS) as threads:
        return list(threads.map(work, range(count)))


def check(schema: dict[str, Any], text: str) -> None:
    Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(json.loads(text))


def test_every_completed_output_is_valid_json_of_its_schema(server: ServerProcess) -> None:
    """Greedy and sampled, with logit biases that push against the grammar."""

    def ask(seed: int) -> bool:
        schema = random_schema(seed)
        sampling = {"temperature": 0} if seed % 3 == 0 else {"temperature": 1.0, "seed": seed}
        pushed = {"logit_bias": {str(token): 100.0 for token in PUSHED}} if seed % 2 else {}
        # A small model likes to go on with blanks for ever where it may.
        schema = {**COMPACT, **schema} if seed % 4 else schema
        named = {"type": "json_schema", "json_schema": {"name": "record", "strict": True, "schema": schema}}
        form = {"guided_json": schema} if seed % 5 else {"response_format": named}
        choice = answer(server, **form, **sampling, **pushed)
        if choice["finish_reason"] != "stop":
            assert choice["finish_reason"] == "length"
            return False
        check(schema, choice["message"]["content"])
        return True

    completed = together(ask, SCHEMAS)
    print(f"{sum(completed)} of {SCHEMAS} outputs completed, all of them valid")
    assert sum(completed) >= 0.8 * SCHEMAS


@pytest.mark.parametrize("push", [False, True])
def test_regular_expressions_and_choices_hold(server: ServerProcess, push: bool) -> None:
    pushed: dict[str, Any] = {"logit_bias": {str(token): 100.0 for token in PUSHED}} if push else {}

    def ask(number: int) -> None:
        sampling = {"temperature": 1.2, "seed": number, **pushed}
        pattern = REGEXES[number % len(REGEXES)]
        choice = answer(server, guided_regex=pattern, max_tokens=60, **sampling)
        assert choice["finish_reason"] == "stop"
        assert re.fullmatch(pattern, choice["message"]["content"])
        choices = ["red", "red wine", "grün 🌲", 'quo"te\\', "\n"]
        choice = answer(server, guided_choice=choices, **sampling)
        assert choice["finish_reason"] == "stop"
        assert choice["message"]["content"] in choices

    together(ask, 2 * len(REGEXES))


def test_a_grammar_in_larks_notation(server: ServerProcess) -> None:
    grammar = 'start: sum\nsum: NUMBER (("+" | "-") NUMBER){1,4}\nNUMBER: /[1-9][0-9]?/'
    for seed in range(3):
        choice = answer(server, guided_grammar=grammar, seed=seed)
        assert choice["finish_reason"] == "stop"
        assert re.fullmatch(r"[1-9][0-9]?([+-][1-9][0-9]?){1,4}", choice["message"]["content"])


def test_json_objects(server: ServerProcess) -> None:
    for form in ({"response_format": {"type": "json_object"}}, {"guided_json_object": True}):
        choice = answer(server, **form, temperature=0, max_tokens=60)
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["message"]["content"]), dict)
        assert choice["message"]["content"].startswith("{")


def test_whitespace_is_bounded_unless_a_request_says_otherwise(server: ServerProcess) -> None:
    """The model is pushed towards whitespace; a blank and a line break are what the default allows at a time."""
    forms: list[dict[str, Any]] = [
        {"guided_json": {"type": "object"}},
        {"response_format": {"type": "json_object"}},
    ]
    pushed = {"logit_bias": {str(token): 100.0 for text in (" ", "  ", "\n", "\n\n") for token in encode(text)}}
    for form in forms:
        asked = {**form, **pushed, "temperature": 0, "max_tokens": 30}
        assert re.match(r"\{( |\n {0,20})?\S", answer(server, **asked)["message"]["content"])
        assert answer(server, **asked, guided_whitespace="any")["message"]["content"].strip() == "{"
        assert not re.search(r"\s", answer(server, **asked, guided_whitespace="none")["message"]["content"][:2])
        padded = answer(server, **asked, guided_whitespace_pattern=" {3}")["message"]["content"]
        assert padded.startswith("{   ")


def test_tags_in_free_text(server: ServerProcess) -> None:
    tag = {"triggers": ["<p"], "structures": [{"begin": "<p>", "schema": PERSON, "end": "</p>"}]}
    # Pushed into a tag, since the model does not know of it.
    forced = {"structural_tag": tag, "logit_bias": {str(token): 30.0 for token in encode("<p>")}}
    for fields in (forced, {**forced, "structural_tag": json.dumps(tag)}):
        text = answer(server, **fields, temperature=0, max_tokens=120)["message"]["content"]
        assert "<p>" in text
        for body in re.findall("<p>(.*?)</p>", text, re.DOTALL):
            check(PERSON, body)
    named = {"type": "structural_tag", **tag}
    assert answer(server, response_format=named, temperature=0, max_tokens=4)["finish_reason"] == "length"


def test_an_object_of_the_client_library(client: openai.Client) -> None:
    """What the library's users do: the schema of a class."""
    completion = client.chat.completions.create(
        model=MODEL,
        messages=ASK,  # type: ignore[arg-type]
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}},
        temperature=0,
    )
    check(PERSON, completion.choices[0].message.content or "")


def test_a_stream_says_the_same(server: ServerProcess) -> None:
    body = {"messages": ASK, "guided_json": PERSON, "temperature": 0.9, "seed": 4, "max_tokens": 100}
    whole = answer(server, **{key: value for key, value in body.items() if key != "messages"})
    with opened_stream(server, body) as payloads:
        parts = chunks(payloads)
    assert text_of(parts) == whole["message"]["content"]
    assert parts[-1]["choices"][0]["finish_reason"] == whole["finish_reason"] == "stop"


def test_completions_and_several_choices(server: ServerProcess) -> None:
    body = {"prompt": ["A person:", "Another:"], "n": 2, "guided_json": PERSON, "max_tokens": 100, "seed": 3}
    response = httpx.post(f"{server.url}/v1/completions", json={"model": MODEL, **body})
    choices = response.json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    for choice in choices:
        assert choice["finish_reason"] == "stop"
        check(PERSON, choice["text"])
    assert len({choice["text"] for choice in choices}) > 1


def test_stop_strings_and_logprobs(server: ServerProcess) -> None:
    cut = answer(server, guided_json=PERSON, temperature=0, stop=['"age"'])
    assert cut["finish_reason"] == "stop"
    assert cut["stop_reason"] == '"age"'
    choice = answer(server, guided_choice=["yes", "no"], logprobs=True, top_logprobs=5)
    first = choice["logprobs"]["content"][0]
    possible = [each["token"] for each in first["top_logprobs"] if each["logprob"] > -9999]
    assert possible
    assert all("yes".startswith(token) or "no".startswith(token) for token in possible)


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"guided_regex": "("}, "guided_regex", ""),
        ({"guided_regex": ""}, "guided_regex", "not empty"),
        ({"guided_grammar": "start: nothing"}, "guided_grammar", "nothing"),
        ({"guided_json": "{"}, "guided_json", "no valid JSON"),
        ({"guided_json": {"type": "thing"}}, "guided_json", "thing"),
        ({"guided_json": {"type": "string", "pattern": "(?=x)"}}, "guided_json", ""),
        ({"guided_choice": []}, "guided_choice", "1 to"),
        ({"guided_choice": ["a", ""]}, "guided_choice.1", "not empty"),
        ({"structural_tag": {}}, "structural_tag", "must have triggers"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_regex", "only one of guided_regex, guided_choice"),
        (
            {"guided_json": {}, "response_format": {"type": "json_object"}},
            "guided_json",
            "only one of guided_json, response_format",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "needed"),
        ({"response_format": {"type": "json_object", "triggers": []}}, "response_format.triggers", "not allowed"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "thing"}}}},
            "response_format.json_schema.schema",
            "thing",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
            "",
        ),
        (
            {"response_format": {"type": "structural_tag", "triggers": ["<"], "structures": []}},
            "response_format.structures",
            "at least one",
        ),
        ({"guided_json": {}, "guided_whitespace": "some"}, "guided_whitespace", "'bounded', 'any' or 'none'"),
        ({"guided_json": {}, "guided_whitespace_pattern": "("}, "guided_whitespace_pattern", "no regular expression"),
        (
            {"guided_json": {}, "guided_whitespace": "any", "guided_whitespace_pattern": " "},
            "guided_whitespace",
            "only one of guided_whitespace, guided_whitespace_pattern",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one of json, json_object, regex"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs", "exactly one of"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "not regex, choice"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", ""),
        ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs.choice.1", "not empty"),
        ({"structured_outputs": {"backend": "xgrammar"}}, "structured_outputs.backend", ""),
        ({"structured_outputs": {"json": {"type": "thing"}}}, "structured_outputs.json", "thing"),
        ({"structured_outputs": {"grammar": "root ::= b"}}, "structured_outputs.grammar", "GBNF"),
        (
            {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
            "is allowed with json",
        ),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": " "}, "guided_whitespace": "any"},
            "guided_whitespace",
            "only one of",
        ),
        (
            {"structured_outputs": {"regex": "a"}, "guided_regex": "a"},
            "guided_regex",
            "only one of guided_regex, structured_outputs",
        ),
        ({"guided_whitespace": "any"}, "guided_whitespace", "is only allowed where a field asks for JSON"),
        (
            {"guided_regex": "a", "guided_whitespace": "any"},
            "guided_whitespace",
            "is only allowed where a field asks for JSON",
        ),
        ({"guided_grammar": "// " + "x" * 140_000}, "guided_grammar", "bytes are too many; the server allows 131072"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_wrong_is_named(server: ServerProcess, fields: dict[str, Any], param: str, reason: str) -> None:
    error = refusal(server, **fields)
    assert error["param"] == param
    assert reason in error["message"]


def test_fields_that_ask_for_nothing_are_accepted(server: ServerProcess) -> None:
    nothing: Sequence[dict[str, Any]] = ({"guided_json_object": False}, {"guided_json": None, "guided_regex": None})
    for fields in nothing:
        assert post(server, {"messages": HELLO, "max_tokens": 1, **fields}).status_code == 200


# Tools, through a template that shows them


FUNCTION = {"name": "save_person", "parameters": PERSON}
TOOLS = [
    {"type": "function", "function": FUNCTION},
    {"type": "function", "function": {"name": "now"}},
]


def ask(client: openai.Client, **fields: Any) -> Any:
    asked = {"messages": ASK, "tools": TOOLS, "temperature": 0.8, "seed": 5, "max_tokens": 120, **fields}
    return client.chat.completions.create(model=MODEL, **asked).choices[0]


def test_a_named_tool_is_called_with_its_arguments(scripted: openai.Client) -> None:
    choice = ask(scripted, tool_choice={"type": "function", "function": {"name": "save_person"}}, extra_body=AT_ONCE)
    (call,) = choice.message.tool_calls
    assert call.function.name == "save_person"
    check(PERSON, call.function.arguments)
    assert choice.message.content is None
    assert choice.finish_reason == "tool_calls"


def test_a_required_call_is_one_of_the_tools(scripted: openai.Client) -> None:
    for seed in range(3):
        choice = ask(scripted, tool_choice="required", parallel_tool_calls=False, seed=seed, extra_body=AT_ONCE)
        if choice.finish_reason == "length":
            continue
        (call,) = choice.message.tool_calls
        assert call.function.name in ("save_person", "now")
        arguments = json.loads(call.function.arguments)
        if call.function.name == "save_person":
            check(PERSON, call.function.arguments)
        assert isinstance(arguments, dict)


def test_a_call_can_begin_the_answer_on_a_server_that_reads_reasoning(scripted: openai.Client) -> None:
    choice = ask(scripted, tool_choice="required", max_tokens=40, extra_body=AT_ONCE)
    assert choice.message.tool_calls
    assert getattr(choice.message, "reasoning_content", None) is None


def test_strict_functions_are_held_to_their_schemas(scripted: openai.Client) -> None:
    """What the model wants to say goes as it likes up to a call, and is what the schema allows from there on."""
    wanted = 'So: <tool_call>\n{"name": "save_person", "arguments": {"name": 5, "more": []}}\n</tool_call>'
    for strict in (True, False):
        tools = [{"type": "function", "function": {**FUNCTION, "strict": strict}}]
        choice = ask(scripted, tools=tools, temperature=0, extra_body=says(wanted))
        (call,) = choice.message.tool_calls
        assert choice.message.content == "So:"
        valid = Draft202012Validator(PERSON).is_valid(json.loads(call.function.arguments))
        assert valid == strict


def test_json_or_a_call(scripted: openai.Client) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    choice = ask(scripted, response_format=form, extra_body=AT_ONCE)
    if choice.message.tool_calls is None:
        check(PERSON, choice.message.content)
    else:
        assert {call.function.name for call in choice.message.tool_calls} <= {"save_person", "now"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice.function.name"),
        ({"tools": TOOLS, "guided_regex": "a"}, "guided_regex"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": 5}}}}],
                "tool_choice": "required",
            },
            "tools",
        ),
    ],
    ids=str,
)
def test_what_is_wrong_with_forced_calls_is_named(
    scripted_server: ServerProcess, fields: dict[str, Any], param: str
) -> None:
    assert refusal(scripted_server, **fields)["param"] == param
