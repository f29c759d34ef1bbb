"""Bodies that nobody sends by accident: good ones, changed at random, each known by a seed and a number."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

JsonValue = Any

SEEDS: list[tuple[str, dict[str, JsonValue]]] = [
    (
        "/v1/chat/completions",
        {
            "model": "default",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "Hello!"}], "name": "x"},
            ],
            "max_tokens": 2,
            "temperature": 0.5,
            "seed": 7,
            "user": "u",
            "metadata": {"a": "b"},
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "Go"}],
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "max_completion_tokens": 2,
            "logprobs": True,
            "top_logprobs": 2,
            "stop": ["a", "b"],
            "logit_bias": {"5": 1.5, "7": -100},
        },
    ),
    (
        "/v1/responses",
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "Hello!"}]},
                {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "1"},
            ],
            "instructions": "Be brief.",
            "max_output_tokens": 2,
            "stream": True,
            "metadata": {"a": "b"},
            "reasoning": {"effort": "low"},
        },
    ),
    (
        "/v1/responses",
        {
            "input": "Go",
            "max_output_tokens": 2,
            "background": True,
            "previous_response_id": "resp_1",
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 2,
            "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}},
        },
    ),
    (
        "/v1/responses/input_tokens",
        {"input": "Go", "tools": [{"type": "function", "name": "f", "parameters": {}}], "tool_choice": "auto"},
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "Go"}],
            "max_tokens": 3,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}},
            },
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "Go"}],
            "max_tokens": 2,
            "logits_processors_args": {"logit_bias": {"3": 2.0}},
            "chat_template_kwargs": {"a": [1, {"b": None}]},
            "add_generation_prompt": False,
            "request_id": "mine",
            "min_p": 0.1,
            "repetition_penalty": 1.1,
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "user", "content": "Go"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
                },
                {"role": "tool", "tool_call_id": "1", "content": "2"},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
            "tool_choice": "none",
            "max_tokens": 2,
        },
    ),
    (
        "/v1/completions",
        {
            "prompt": ["Hello", "World"],
            "max_tokens": 2,
            "n": 2,
            "best_of": 2,
            "echo": True,
            "logprobs": 1,
            "prompt_logprobs": 1,
            "return_token_ids": True,
        },
    ),
    (
        "/v1/completions",
        {
            "prompt": [[1, 2, 3], [4]],
            "max_tokens": 2,
            "bad_words": ["x"],
            "stop_token_ids": [5],
            "min_tokens": 1,
            "ignore_eos": True,
            "top_k": 5,
            "top_p": 0.9,
            "presence_penalty": 0.5,
            "frequency_penalty": -0.5,
        },
    ),
    ("/v1/completions", {"prompt": "Hi", "max_tokens": 3, "guided_regex": "[a-z]+", "stream": True}),
    ("/v1/completions", {"prompt": "Hi", "max_tokens": 3, "guided_choice": ["yes", "no"]}),
    (
        "/v1/completions",
        {"prompt": "Hi", "max_tokens": 2, "logits_processors": [{"name": "LogitBiasLogitsProcessor", "params": {}}]},
    ),
    (
        "/v1/messages",
        {
            "model": "default",
            "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "5m"}}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Go"}]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                        {"type": "tool_use", "id": "1", "name": "f", "input": {"a": [1, {"b": None}]}},
                    ],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "1", "content": "2", "is_error": True}],
                },
            ],
            "tools": [{"name": "f", "description": "F", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "none"},
            "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
            "max_tokens": 2,
            "metadata": {"user_id": "u"},
        },
    ),
    (
        "/v1/messages",
        {
            "messages": [{"role": "user", "content": "Go"}, {"role": "assistant", "content": "So"}],
            "max_tokens": 2,
            "stream": True,
            "stop_sequences": ["a", "b"],
            "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"enum": [1, "a"]}}},
            "temperature": 0.5,
            "top_k": 5,
            "logit_bias": {"5": 1.5},
            "return_token_ids": True,
        },
    ),
    (
        "/v1/messages/count_tokens",
        {"messages": [{"role": "user", "content": "Go"}], "tools": [{"name": "f", "input_schema": {}}]},
    ),
    ("/v1/embeddings", {"input": ["a", "b"], "encoding_format": "base64", "dimensions": 2, "pooling": "mean"}),
    ("/v1/rerank", {"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1, "return_documents": False}),
    ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c", "d"], "pooling": "last", "dimensions": 2}),
    ("/pooling", {"input": [[1, 2], [3]], "task": "token_embed", "normalize": False}),
    ("/pooling", {"messages": [{"role": "user", "content": "Go"}], "add_generation_prompt": True}),
    ("/tokenize", {"prompt": "Hello", "add_special_tokens": True, "return_token_strs": True}),
    ("/tokenize", {"messages": [{"role": "user", "content": "Go"}], "add_generation_prompt": True}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
    ("/v1/abort_requests", {"req_ids": ["chatcmpl-1"], "abort_all": False}),
    ("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 2, "logprobs": 2, "logits_processors_trace": {"top_k": 3}}),
    ("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 2, "vllm_xargs": {"a": 1}, "timeout": 5.0}),
    ("/v1/completions", {"prompt": [[5, 6], [7]], "max_tokens": 2, "stream": True, "return_token_ids": True}),
    (
        "/v1/completions",
        {"prompt": "Hi", "max_tokens": 2, "guided_json": {"type": "array", "items": {"enum": [1, "a"]}}},
    ),
    ("/v1/completions", {"prompt": "Hi", "max_tokens": 2, "guided_grammar": 'root ::= "a" | "b" root'}),
    (
        "/v1/chat/completions",
        {"prompt_token_ids": [5, 6, 7], "max_tokens": 2, "allowed_token_ids": [5, 6], "bad_words_token_ids": [[5]]},
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "Go"}],
            "max_tokens": 2,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
        },
    ),
    ("/v1/embeddings", {"input": [5, 6, 7], "encoding_format": "float", "truncate_prompt_tokens": 2}),
    ("/v1/logits_processors/LogitBiasLogitsProcessor/reset", {}),
    ("/detokenize", {"tokens": [5, 2**31], "skip_special_tokens": False}),
]
# What a body does not decide: asked for with changed paths, and now and then with a body that nobody expects.
GET_PATHS = [
    *("/v1/models", "/v1/models/default", "/v1/logits_processors", "/load", "/version", "/metrics", "/health", "/ping"),
    *("/health/live", "/health/ready", "/openapi.json", "/docs", "/", "/v1", "/v1/completions", "/playground"),
]
METHODS = ["GET"] * 10 + ["HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "POST"]
PATH_PARTS = [
    *("..", ".", "", "%00", "%2e%2e%2f", "%ff", "a" * 3000, "?a=b&a=c", "?" + "&" * 500, "//", ";", "%0d%0aX:1", "*"),
    "{name}",
]

NASTY: list[JsonValue] = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        16,
        1000,
        2**31,
        2**32,
        2**53 + 1,
        2**63 - 1,
        2**63,
        2**64,
        -(2**63) - 1,
        10**400,
    ),
    *(0.0, -0.0, 0.5, 1e-308, 1e308, -1e308, 5e-324, float("inf"), float("-inf"), float("nan")),
    *("", " ", "a", "\0", "\r\nX-Injected: 1", "\ud800", "\udfff\ud800", "é", "\U0001f600" * 20, "a" * 5000, "%s%n{0}"),
    *(
        "../../../../etc/passwd",
        "file:///etc/passwd",
        "${jndi:ldap://x}",
        "{{ 7*7 }}",
        "{% for x in range(9) %}x{% endfor %}",
    ),
    *("\u2028", "\ufeff", "\x7f", "[", "(((((", "a{1000}{1000}", "(a|b)*" * 100, "{", '"', "\\", "<|im_end|>", "</s>"),
    *(
        [],
        [[]],
        [None],
        [[], {}],
        {},
        {"": ""},
        {"a": {"a": {}}},
        [0] * 300,
        ["x"] * 50,
        {str(i): i for i in range(300)},
    ),
    *({"type": "json_object"}, {"type": "text"}, {"type": "object"}, {"$ref": "#"}, [{"role": "user", "content": "x"}]),
]
WORDS = [
    *("messages", "prompt", "model", "n", "best_of", "stop", "stream", "tools", "tool_choice", "logit_bias", "role"),
    *(
        "content",
        "seed",
        "max_tokens",
        "guided_json",
        "guided_regex",
        "guided_grammar",
        "guided_choice",
        "response_format",
    ),
    *("structural_tag", "chat_template", "chat_template_kwargs", "logits_processors", "logits_processors_args"),
    *("vllm_xargs", "prompt_token_ids", "bad_words", "bad_words_token_ids", "allowed_token_ids", "min_tokens", "user"),
    *("logprobs", "top_logprobs", "prompt_logprobs", "request_id", "metadata", "functions", "enable_thinking", "echo"),
    *("system", "thinking", "output_config", "cache_control", "tool_use_id", "input_schema", "type", "is_error"),
    *("continue_final_message", "stop_token_ids", "input", "dimensions", "tokens", "abort_all", "req_ids", "__class__"),
]


# The first two are keys of a server that needs one.
KEYS = ["key-of-one-client", "key-of-another", "key-of-nobody", "", "\xff", "k" * 4000]


@dataclass(frozen=True)
class HostileBody:
    """What is sent to a path, and the number that it can be had again by; `key` is one of KEYS."""

    number: int
    path: str
    content: bytes
    method: str = "POST"
    key: str = KEYS[0]

    @property
    def headers(self) -> dict[str, str]:
        """Those of the request."""
        return {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}


def hostile_body(seed: int, number: int) -> HostileBody:
    """The `number`-th body of a seed: a good one after one to three changes of its values or its bytes."""
    rng = random.Random(f"{seed}:{number}")
    path, good = rng.choice(SEEDS)
    body: JsonValue = copy.deepcopy(good)
    for _ in range(rng.choice([1, 1, 1, 1, 2, 2, 3])):
        body = changed(body, rng)
    content = json.dumps(body).encode()
    if rng.random() < 0.15:
        for _ in range(rng.randint(1, 3)):
            content = rng.choice(BYTE_CHANGES)(content, rng)
    key = rng.choice([*KEYS[:2] * 20, *KEYS])
    if rng.random() < 0.04:
        return HostileBody(number, _path(rng), content if rng.random() < 0.1 else b"", rng.choice(METHODS), key)
    return HostileBody(number, path, content, key=key)


def _path(rng: random.Random) -> str:
    parts = rng.choice(GET_PATHS).split("/")
    if rng.random() < 0.5:
        parts.insert(rng.randrange(1, len(parts) + 1), rng.choice(PATH_PARTS))
    return "/".join(parts)


def changed(body: JsonValue, rng: random.Random, words: Sequence[str] = WORDS) -> JsonValue:
    """One place of the body is replaced, removed, doubled, wrapped, or joined by another; `words` are its names."""
    places = list(_places(body))
    if not places or rng.random() < 0.02:
        return copy.deepcopy(rng.choice(NASTY))
    parent, key = rng.choice(places)
    change = rng.random()
    if change < 0.5:
        parent[key] = _nasty(rng)
    elif change < 0.6:
        del parent[key]
    elif change < 0.7:
        parent[key] = _wrapped(parent[key], rng)
    elif change < 0.8 and isinstance(parent, list):
        parent.extend(copy.deepcopy(parent[key]) for _ in range(rng.choice([1, 5, 200])))
    elif isinstance(parent, dict):
        parent[rng.choice(words)] = _nasty(rng)
    return body


def _nasty(rng: random.Random) -> JsonValue:
    return copy.deepcopy(rng.choice(NASTY))


def _wrapped(value: JsonValue, rng: random.Random) -> JsonValue:
    for _ in range(rng.choice([1, 1, 2, 40, 130, 200])):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def _places(value: JsonValue) -> list[tuple[Any, Any]]:
    """Every (container, key) of the body; found without recursion, for bodies that are nested deeply."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        each = waiting.pop()
        keys: list[Any] = (
            list(each) if isinstance(each, dict) else list(range(len(each))) if isinstance(each, list) else []
        )
        found += [(each, key) for key in keys[:50]]
        waiting += [each[key] for key in keys[:50]]
    return found


def _flipped(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content) or 1)
    return content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :]


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _inserted(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content) + 1)
    noise = rng.choice(
        [b"\0", b"\xff\xfe", b"[" * 300, b'{"a":' * 300, b",", b'"', b"\\u0000", b"\\ud800", b"NaN", b"1e999"]
    )
    return content[:at] + noise + content[at:]


def _repeated(content: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(content) or 1)
    part = content[start : start + rng.randrange(1, 40)]
    return content[:start] + part * rng.randrange(2, 50) + content[start:]


BYTE_CHANGES: list[Callable[[bytes, random.Random], bytes]] = [_flipped, _cut, _inserted, _repeated]
