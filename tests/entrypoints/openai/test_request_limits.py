"""Requests that ask for too much: each is refused with its limit named, or bounded, and the server goes on."""

from __future__ import annotations

import json
import re
import select
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.chat import SLOW_TEMPLATE
from support.errors import check_error
from support.processes import children_of
from support.server import REPOSITORY, ServerProcess, wait_until

from fastdeploy_lp.request import limits as request_limits
from fastdeploy_lp.request.limits import (
    MAX_ARGUMENT_VALUES,
    MAX_BAD_WORD_CHARACTERS,
    MAX_BAD_WORD_LISTS,
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_BODY_DEPTH,
    MAX_BODY_MEMBERS,
    MAX_BODY_VALUES,
    MAX_CHOICES,
    MAX_GBNF,
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_MESSAGES,
    MAX_METADATA,
    MAX_METADATA_KEY,
    MAX_METADATA_VALUE,
    MAX_N,
    MAX_OBJECT_FIELDS,
    MAX_PROMPTS,
    MAX_SEQUENCES,
    MAX_STOP_CHARACTERS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TOOLS,
)

SECONDS = 600.0
ASK: dict[str, Any] = {"prompt": "Hello", "max_tokens": 2, "temperature": 0}
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, "temperature": 0}
TOOL = {"type": "function", "function": {"name": "f"}}
# What the API process may take for a moment while it refuses something: a few times the largest body.
MEMORY_BYTES = 1 << 30


@pytest.fixture(scope="module")
def limited(named_server: ServerProcess) -> ServerProcess:
    """A tiny model on a server that takes templates of requests."""
    return named_server


@pytest.fixture(scope="module", autouse=True)
def logged_before(limited: ServerProcess) -> int:
    """How long the log was before these tests."""
    return len(limited.log)


def post(server: ServerProcess, path: str, body: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    return httpx.post(f"{server.url}{path}", content=content, headers=headers, timeout=SECONDS)


def nested(depth: int) -> Any:
    value: Any = {"type": "object"}
    for _ in range(depth):
        value = {"items": value}
    return value


def raw(field: str, text: str) -> bytes:
    """ASK with a field whose JSON Python would not write."""
    others = {name: value for name, value in ASK.items() if name != field}
    return json.dumps(others).encode()[:-1] + f', "{field}": {text}}}'.encode()


TOO_MUCH: dict[str, tuple[Callable[[], Any], str | None, str]] = {
    "n": (lambda: {**ASK, "n": 1000}, "n", str(MAX_N)),
    "best_of": (lambda: {**ASK, "best_of": 1000}, "best_of", str(MAX_N)),
    "max_tokens": (lambda: {**ASK, "max_tokens": 10**9}, "max_tokens", "128 tokens"),
    "min_tokens": (lambda: {**ASK, "min_tokens": 10**9}, "min_tokens", "max_tokens"),
    "logprobs": (lambda: {**ASK, "logprobs": 10**6}, "logprobs", str(MAX_LOGPROBS)),
    "prompt logprobs": (lambda: {**ASK, "prompt_logprobs": 21}, "prompt_logprobs", str(MAX_LOGPROBS)),
    "stop strings": (lambda: {**ASK, "stop": ["x"] * 100_000}, "stop", str(MAX_STOP_STRINGS)),
    "a long stop string": (lambda: {**ASK, "stop": ["x" * 10**6]}, "stop.0", str(MAX_STOP_CHARACTERS)),
    "stop tokens": (lambda: {**ASK, "stop_token_ids": [1] * 5000}, "stop_token_ids", str(MAX_STOP_TOKEN_IDS)),
    "bad words": (lambda: {**ASK, "bad_words": ["x"] * 100_000}, "bad_words", str(MAX_BAD_WORDS)),
    "a long bad word": (lambda: {**ASK, "bad_words": ["x" * 10**6]}, "bad_words.0", str(MAX_BAD_WORD_CHARACTERS)),
    "bad lists": (
        lambda: {**ASK, "bad_words_token_ids": [[1]] * 20_000},
        "bad_words_token_ids",
        str(MAX_BAD_WORD_LISTS),
    ),
    "a long bad list": (
        lambda: {**ASK, "bad_words_token_ids": [[1] * 5000]},
        "bad_words_token_ids.0",
        str(MAX_BAD_WORD_TOKENS),
    ),
    "bad words and lists": (
        lambda: {**ASK, "bad_words": ["xyz"] * 4096, "bad_words_token_ids": [[1]] * 16_000},
        "bad_words",
        str(MAX_BAD_WORD_LISTS),
    ),
    "allowed tokens": (lambda: {**ASK, "allowed_token_ids": [1] * 100_000}, "allowed_token_ids", "tokens"),
    "biases": (lambda: {**ASK, "logit_bias": {str(i): 1.0 for i in range(50_000)}}, "logit_bias", str(MAX_LOGIT_BIAS)),
    "a hundred thousand biases": (
        lambda: {**ASK, "logit_bias": {str(i): 1.0 for i in range(100_000)}},
        None,
        str(MAX_BODY_MEMBERS),
    ),
    "flat biases": (
        lambda: {**ASK, "logits_processors_args": {"logit_bias": {str(i): 1.0 for i in range(30_000)}}},
        "logits_processors_args.logit_bias",
        str(MAX_LOGIT_BIAS),
    ),
    "arguments": (
        lambda: {**ASK, "logits_processors_args": {"logit_bias": [0] * 100_000}},
        "logits_processors_args.logit_bias",
        str(MAX_ARGUMENT_VALUES),
    ),
    "biases of other tokens": (
        lambda: {**ASK, "logits_processors_args": {"logit_bias": {str(i): 1.0 for i in range(4000)}}},
        "logits_processors_args.logit_bias.",
        "vocabulary",
    ),
    "deep arguments": (
        lambda: {**ASK, "logits_processors_args": {"logit_bias": nested(60)}},
        "logits_processors_args.logit_bias.",
        "32 levels",
    ),
    "metadata": (lambda: {**ASK, "metadata": {str(i): "" for i in range(50_000)}}, "metadata", str(MAX_METADATA)),
    "a long key": (lambda: {**ASK, "metadata": {"k" * 10**6: "v"}}, "metadata", str(MAX_METADATA_KEY)),
    "a long value": (lambda: {**ASK, "metadata": {"k": "v" * 10**6}}, "metadata", str(MAX_METADATA_VALUE)),
    "unknown fields": (lambda: {**ASK, **{f"x{i}": 1 for i in range(50_000)}}, None, str(MAX_OBJECT_FIELDS)),
    "prompts": (lambda: {**ASK, "prompt": ["x"] * 10_000}, "prompt", str(MAX_PROMPTS)),
    "sequences": (lambda: {**ASK, "prompt": ["x"] * 2000, "n": 128}, "prompt", str(MAX_SEQUENCES)),
    "a long prompt": (lambda: {**ASK, "prompt": "word " * 10**6}, "prompt", "characters"),
    "choices": (lambda: {**ASK, "guided_choice": ["x"] * 20_000}, "guided_choice", str(MAX_CHOICES)),
    "long GBNF": (lambda: {**ASK, "guided_grammar": "r ::= " + "a " * 20_000}, "guided_grammar", str(MAX_GBNF)),
    "a long regex": (lambda: {**ASK, "guided_regex": "a" * (1 << 20)}, "guided_regex", "bytes are too many"),
    "a deep schema": (lambda: {**ASK, "guided_json": nested(5000 // 10)}, None, f"{MAX_BODY_DEPTH} levels"),
    "a deep schema as text": (
        lambda: {**ASK, "guided_json": '{"items": ' * 5000 + "{}" + "}" * 5000},
        "guided_json",
        "nested too deeply",
    ),
    "a deep body": (lambda: b"[" * 10**6 + b"]" * 10**6, None, f"{MAX_BODY_DEPTH} levels"),
    "a body that only opens": (lambda: b'{"a":' * 10**6, None, f"{MAX_BODY_DEPTH} levels"),
    "values": (lambda: {**ASK, "prompt": [None] * (MAX_BODY_VALUES + 1)}, None, str(MAX_BODY_VALUES)),
    "members": (lambda: {**ASK, "guided_json": {str(i): i for i in range(200_000)}}, None, str(MAX_BODY_MEMBERS)),
    "wrong values": (lambda: {**ASK, "prompt": [None] * 900_000}, "prompt.0", "valid"),
    "a huge float": (lambda: {**ASK, "temperature": 1e308}, "temperature", "100"),
    "infinity": (lambda: raw("temperature", "1e999"), "temperature", "100"),
    "a huge integer for a float": (lambda: raw("temperature", "9" * 4000), "temperature", "number"),
    "a huge integer": (lambda: {**ASK, "seed": 10**4000}, "seed", "18446744073709551615"),
    "an integer of a million digits": (lambda: raw("seed", "9" * 10**6), None, "JSON"),
}
TOO_MUCH_CHAT: dict[str, tuple[Callable[[], Any], str | None, str]] = {
    "top logprobs": (lambda: {**HELLO, "logprobs": True, "top_logprobs": 21}, "top_logprobs", str(MAX_LOGPROBS)),
    "messages": (lambda: {**HELLO, "messages": HELLO["messages"] * 20_000}, "messages", str(MAX_MESSAGES)),
    "no messages": (lambda: {**HELLO, "messages": [None] * 100_000}, "messages", str(MAX_MESSAGES)),
    "tools": (lambda: {**HELLO, "tools": [TOOL] * 5000}, "tools", str(MAX_TOOLS)),
    "a long message": (
        lambda: {**HELLO, "messages": [{"role": "user", "content": "word " * 10**6}]},
        "messages",
        "characters",
    ),
    "a deep schema": (
        lambda: {
            **HELLO,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": nested(500)}},
        },
        None,
        f"{MAX_BODY_DEPTH} levels",
    ),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_too_much_is_refused_with_the_limit(limited: ServerProcess, name: str) -> None:
    body, param, named = TOO_MUCH[name]
    check_refused(post(limited, "/v1/completions", body()), param, named)


@pytest.mark.parametrize("name", TOO_MUCH_CHAT)
def test_too_much_in_a_chat_is_refused_with_the_limit(limited: ServerProcess, name: str) -> None:
    body, param, named = TOO_MUCH_CHAT[name]
    check_refused(post(limited, "/v1/chat/completions", body()), param, named)


def check_refused(answer: httpx.Response, param: str | None, named: str) -> None:
    error = check_error(answer, 400)
    assert named in error["message"]
    assert len(error["message"]) < 1000
    if param is None or not param.endswith("."):
        assert error["param"] == param
    else:
        assert str(error["param"]).startswith(param)


def test_inputs_of_embeddings_are_bounded(limited: ServerProcess) -> None:
    check_refused(post(limited, "/v1/embeddings", {"input": ["x"] * 10_000}), "input", str(MAX_PROMPTS))
    check_refused(post(limited, "/v1/embeddings", {"input": "word " * 10**6}), "input", "characters")


BOUNDED: dict[str, Any] = {
    "a regex that repeats": {"guided_regex": "((a{1,100}){1,100}){1,100}"},
    "a regex that could backtrack": {"guided_regex": "(a|a|aa)*(a|a)*b"},
    "many choices": {"guided_choice": [f"choice {number}" for number in range(9_000)]},
    "a grammar that refers to itself": {"guided_grammar": "start: a\na: b | b a\nb: a | /x/"},
    "a schema that refers to itself": {"guided_json": {"$ref": "#"}},
    "a schema of many properties": {
        "guided_json": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(2000)}}
    },
    "a schema 100 levels deep": {"guided_json": nested(100)},
    "a bias of 1e308": {"logit_bias": {"5": 1e308}},
    "a bias of minus infinity": {"logits_processors_args": {"logit_bias": {"5": float("-inf")}}},
    "half of a surrogate pair": {"user": "\ud800", "stop": ["\ud800"]},
    "half a pair in a regex": {"guided_regex": "\ud800"},
    "half a pair in a schema": {"guided_json": {"const": "\ud800"}},
    "half a pair in a choice": {"guided_choice": ["\ud800"]},
    "half a pair in a grammar": {"guided_grammar": 'start: "\ud800"'},
    "half a pair as a model": {"model": "\ud800"},
    "NUL": {"prompt": "a\0b", "stop": ["\0"], "user": "\0", "guided_regex": "\0"},
    "the smallest float": {"temperature": 5e-324, "top_p": 5e-324},
    "the smallest share": {"temperature": 1.0, "top_p": 5e-324},
    "the smallest share of few": {"temperature": 1.0, "top_p": 1e-308, "top_k": 5, "min_p": 5e-324},
    "the smallest penalty": {"temperature": 1.0, "repetition_penalty": 5e-324},
    "the hottest": {"temperature": 100.0, "top_p": 0.9999999999999999, "min_p": 1.0},
}


@pytest.mark.parametrize("name", BOUNDED)
def test_what_is_expensive_is_refused_or_bounded(limited: ServerProcess, name: str) -> None:
    answer = post(limited, "/v1/completions", {**ASK, **BOUNDED[name]})
    assert answer.status_code in (200, 400, 404), answer.text
    if answer.status_code != 200:
        check_error(answer, answer.status_code)


def test_ids_that_cannot_be_written_are_refused(limited: ServerProcess) -> None:
    for name in ("\ud800", "a b", "", "x" * 1000, "a\n"):
        assert check_error(post(limited, "/v1/abort_requests", {"req_ids": [name]}), 400)["param"] == "req_ids.0"


BOMBS = {
    "a text repeated": "{{ 'a' * (10 ** 10) }}",
    "a list repeated": "{% set x = [1] * (10 ** 10) %}",
    "a message repeated": "{{ messages[0].content * (10 ** 10) }}",
    "a power": "{{ 9 ** (9 ** 9) }}",
    "a padded number": "{{ '%1000000000d' % 1 }}",
    "a centered text": "{{ 'x'|center(1000000000) }}",
    "a loop in loops": "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    "a macro that calls itself": "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "doubling": "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "deep brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "deep lists": "{{ " + "[" * 200_000 + "]" * 200_000 + " }}",
    "an internal": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_templates_bomb_is_refused(limited: ServerProcess, name: str) -> None:
    answer = post(limited, "/v1/chat/completions", {**HELLO, "chat_template": BOMBS[name]})
    assert check_error(answer, 400)["param"] == "chat_template"


def renders(server: ServerProcess) -> bool:
    """Whether a process of the server renders a template of a request."""
    return bool(children_of(server.pid, "template_process"))


def test_others_are_answered_while_a_template_runs(limited: ServerProcess) -> None:
    """Its client leaves then; how long a template may run is in test_template_sandbox.py."""
    content = json.dumps({**HELLO, "chat_template": SLOW_TEMPLATE}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: server\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", limited.port), timeout=SECONDS) as slow:
        slow.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        wait_until(lambda: renders(limited), SECONDS)
        assert post(limited, "/v1/chat/completions", HELLO).status_code == 200
        assert select.select([slow], [], [], 0)[0] == []
    wait_until(lambda: not renders(limited), SECONDS)


def test_a_trusted_template_may_still_be_used(limited: ServerProcess) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    answers = [
        post(limited, "/v1/chat/completions", {**HELLO, **more, "return_token_ids": True}).json()
        for more in ({"chat_template": template}, {})
    ]
    assert answers[0]["prompt_token_ids"] != answers[1]["prompt_token_ids"]
    assert len(answers[0]["prompt_token_ids"]) < len(answers[1]["prompt_token_ids"])


def test_the_server_is_what_it_was(limited: ServerProcess, logged_before: int) -> None:
    """The last test of this file: after all of the above."""
    answers = [post(limited, "/v1/completions", ASK).json()["choices"] for _ in range(2)]
    assert answers[0] == answers[1]
    assert httpx.get(f"{limited.url}/load").json()["server_load"] == 0
    assert "Traceback" not in limited.log[logged_before:]
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{limited.pid}/status").read_text())
    assert peak is not None
    assert int(peak.group(1)) * 1024 < MEMORY_BYTES


def test_every_limit_is_documented_with_its_number() -> None:
    page = (REPOSITORY / "docs" / "limits.md").read_text()
    rows = dict(re.findall(r"^\| .*?`([A-Z_]+)` \| ([\d.]+)", page, re.MULTILINE))
    limits = {name: value for name, value in vars(request_limits).items() if name.isupper()}
    assert rows == {name: str(int(value)) for name, value in limits.items()}
