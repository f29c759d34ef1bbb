"""Bodies of Anthropic's Messages API that together have each of its fields; token ids say what a field does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from support.clients.case import USER
from support.clients.generation_cases import ONLY_A, A, B, C
from support.forced import AT_ONCE

MESSAGES, COUNT_TOKENS = "POST /v1/messages", "POST /v1/messages/count_tokens"
END = 2
Check = Callable[[Any], None]


@dataclass(frozen=True)
class MessageCase:
    """`option` is one of `fields`, sent on top of a body that asks for token ids."""

    option: str
    fields: dict[str, Any]
    check: Check = field(repr=False)

    @property
    def body(self) -> dict[str, Any]:
        """The body."""
        base = {"model": "default", "messages": USER, "max_tokens": 4, "temperature": 0, "return_token_ids": True}
        return base | self.fields


def tokens_are(*expected: int) -> Check:
    def check(content: Any) -> None:
        assert content["token_ids"] == list(expected)

    return check


def num_tokens_is(count: int) -> Check:
    def check(content: Any) -> None:
        assert content["usage"]["output_tokens"] == len(content["token_ids"]) == count

    return check


def tokens_among(*allowed: int) -> Check:
    def check(content: Any) -> None:
        assert set(content["token_ids"]) <= set(allowed)

    return check


def tokens_without(token: int) -> Check:
    def check(content: Any) -> None:
        assert content["token_ids"]
        assert token not in content["token_ids"]

    return check


def text_is_one_of(*texts: str) -> Check:
    def check(content: Any) -> None:
        assert [block["text"] for block in content["content"]] in [[text] for text in texts]

    return check


def begins_an_object(content: Any) -> None:
    assert content["content"][0]["text"].startswith("{")


def is_message(content: Any) -> None:
    assert (content["type"], content["role"], content["stop_sequence"]) == ("message", "assistant", None)
    assert content["usage"]["output_tokens"] == len(content["token_ids"])


def prompt_has(count: int) -> Check:
    def check(content: Any) -> None:
        assert len(content["prompt_token_ids"]) == count

    return check


def has_id(content: Any) -> None:
    assert content["id"] == "msg_of-a-client"


def is_traced(content: Any) -> None:
    assert [each["token_id"] for each in content["logits_processors_trace"]] == content["token_ids"][:2]


def is_shadowed(content: Any) -> None:
    assert content["logits_processors_shadow"]["LogitBiasLogitsProcessor"]["tokens"] == 4


def is_stream(content: Any) -> None:
    assert content.startswith("event: message_start\n")
    assert content.rstrip().endswith('data: {"type":"message_stop"}')


def counts(content: Any) -> None:
    assert content["input_tokens"] > 20


CACHED: dict[str, Any] = {"cache_control": {"type": "ephemeral", "ttl": "5m"}}
TOOL: dict[str, Any] = {
    "type": "custom",
    "name": "f",
    "description": "F",
    "input_schema": {"type": "object"},
    "strict": False,
    **CACHED,
}
NO_CALL: dict[str, Any] = {"type": "none", "disable_parallel_tool_use": True}
TEXT: dict[str, Any] = {"type": "text", "text": "Weather?", **CACHED}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": [TEXT]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "s"},
            {"type": "tool_use", "id": "1", "name": "f", "input": {}, **CACHED},
        ],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "1", "content": [TEXT], "is_error": True, **CACHED}],
    },
]
COLOUR: dict[str, Any] = {"enum": ["red", "blue"]}
COLOURS = ('"red"', '"blue"')
TWICE: dict[str, Any] = {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2}
TAG: dict[str, Any] = {"structures": [{"begin": "<c>", "schema": COLOUR, "end": "</c>"}], "triggers": ["<c"]}
RANDOM: dict[str, Any] = {"temperature": 2.0, "seed": 5}
ROOM: dict[str, Any] = {"max_tokens": 24, **AT_ONCE}


def forced(*tokens: int) -> dict[str, Any]:
    return {"forced_tokens": list(tokens)}


MESSAGE_CASES = [
    MessageCase("model", {"model": "default"}, is_message),
    MessageCase("messages", {"messages": CONVERSATION}, is_message),
    MessageCase("messages", {"messages": [*USER, {"role": "assistant", "content": "So"}]}, is_message),
    MessageCase("max_tokens", {"max_tokens": 2}, num_tokens_is(2)),
    MessageCase("system", {"system": [TEXT]}, is_message),
    MessageCase("tools", {"tools": [TOOL]}, is_message),
    MessageCase("tool_choice", {"tools": [TOOL], "tool_choice": NO_CALL}, is_message),
    MessageCase("tool_choice", {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "f"}}, is_message),
    MessageCase("thinking", {"thinking": {"type": "adaptive", "display": "omitted"}}, is_message),
    MessageCase("thinking", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, is_message),
    MessageCase(
        "output_config",
        {"output_config": {"effort": "low", "format": {"type": "json_schema", "schema": COLOUR}}, **ROOM},
        text_is_one_of(*COLOURS),
    ),
    MessageCase("cache_control", CACHED, is_message),
    MessageCase("metadata", {"metadata": {"user_id": "somebody"}}, is_message),
    MessageCase("service_tier", {"service_tier": "standard_only"}, is_message),
    MessageCase("thread", {"thread": None}, is_message),
    MessageCase("stop_sequences", {"stop_sequences": ["never"]}, is_message),
    MessageCase("stream", {"stream": True}, is_stream),
    MessageCase("temperature", {"temperature": 0.0}, num_tokens_is(4)),
    MessageCase("top_p", {"top_p": 1e-6, **RANDOM, **ONLY_A}, tokens_are(A, A, A, A)),
    MessageCase("top_k", {"top_k": 1, **RANDOM, **ONLY_A}, tokens_are(A, A, A, A)),
    MessageCase("min_p", {"min_p": 1.0, **RANDOM, **ONLY_A}, tokens_are(A, A, A, A)),
    MessageCase("seed", RANDOM, num_tokens_is(4)),
    MessageCase("repetition_penalty", {"repetition_penalty": 2.0}, num_tokens_is(4)),
    MessageCase("presence_penalty", {"presence_penalty": 2.0}, num_tokens_is(4)),
    MessageCase("frequency_penalty", {"frequency_penalty": 2.0}, num_tokens_is(4)),
    MessageCase("min_tokens", {"min_tokens": 4}, num_tokens_is(4)),
    MessageCase("ignore_eos", {"ignore_eos": True, "logits_processors_args": forced(A)}, num_tokens_is(4)),
    MessageCase("speculative", {"speculative": False}, num_tokens_is(4)),
    MessageCase("stream_interval", {"stream_interval": 3}, num_tokens_is(4)),
    MessageCase("skip_special_tokens", {"skip_special_tokens": False}, num_tokens_is(4)),
    MessageCase("include_stop_str_in_output", {"include_stop_str_in_output": True}, num_tokens_is(4)),
    MessageCase("bad_words", {"bad_words": ["two"]}, num_tokens_is(4)),
    MessageCase("bad_words_token_ids", {"bad_words_token_ids": [[A]], **ONLY_A}, tokens_without(A)),
    MessageCase("allowed_token_ids", {"allowed_token_ids": [A, B]}, tokens_among(A, B)),
    MessageCase("stop_token_ids", {"stop_token_ids": [A], **ONLY_A}, tokens_are(A)),
    MessageCase("logit_bias", ONLY_A, tokens_are(A, A, A, A)),
    MessageCase("logits_processors_args", {"logits_processors_args": forced(C, A)}, tokens_are(C, A, END)),
    MessageCase("logits_processors", {"logits_processors": {"ForcesTokens": forced(B, C)}}, tokens_are(B, C, END)),
    MessageCase("logits_processors_trace", {"logits_processors_trace": {"top_k": 2, "max_tokens": 2}}, is_traced),
    MessageCase(
        "logits_processors_shadow", {"logits_processors_shadow": ["LogitBiasLogitsProcessor"], **ONLY_A}, is_shadowed
    ),
    MessageCase("vllm_xargs", {"vllm_xargs": forced(B)}, tokens_are(B, END)),
    MessageCase("return_token_ids", {"return_token_ids": True}, num_tokens_is(4)),
    MessageCase("thinking_token_budget", {"thinking_token_budget": 5}, num_tokens_is(4)),
    MessageCase("cache_salt", {"cache_salt": "of-one-tenant"}, num_tokens_is(4)),
    MessageCase("truncate_prompt_tokens", {"truncate_prompt_tokens": 2}, prompt_has(2)),
    MessageCase("truncation_side", {"truncation_side": "right", "truncate_prompt_tokens": 2}, prompt_has(2)),
    MessageCase("add_special_tokens", {"add_special_tokens": False}, num_tokens_is(4)),
    MessageCase("request_id", {"request_id": "of-a-client"}, has_id),
    MessageCase("timeout", {"timeout": 120.0}, is_message),
    MessageCase("chat_template", {"chat_template": "abc"}, prompt_has(3)),
    MessageCase(
        "chat_template_kwargs",
        {"chat_template": "{{ flavour }}", "chat_template_kwargs": {"flavour": "abc"}},
        prompt_has(3),
    ),
    MessageCase("guided_json", {"guided_json": COLOUR, **ROOM}, text_is_one_of(*COLOURS)),
    MessageCase("guided_json_object", {"guided_json_object": True, **AT_ONCE}, begins_an_object),
    MessageCase(
        "guided_whitespace", {"guided_json": TWICE, "guided_whitespace": "none", **ROOM}, text_is_one_of("[1,1]")
    ),
    MessageCase(
        "guided_whitespace_pattern",
        {"guided_json": COLOUR, "guided_whitespace_pattern": "[ ]", **ROOM},
        text_is_one_of(*COLOURS),
    ),
    MessageCase("guided_regex", {"guided_regex": "ab{2}", **ROOM}, text_is_one_of("abb")),
    MessageCase("guided_choice", {"guided_choice": ["yes", "no"], **ROOM}, text_is_one_of("yes", "no")),
    MessageCase("guided_grammar", {"guided_grammar": 'start: "ab" "cd"', **ROOM}, text_is_one_of("abcd")),
    MessageCase("guided_when", {"guided_choice": ["yes", "no"], **ROOM}, text_is_one_of("yes", "no")),
    MessageCase("structural_tag", {"structural_tag": TAG}, num_tokens_is(4)),
    MessageCase("structured_outputs", {"structured_outputs": {"regex": "ab{2}"}, **ROOM}, text_is_one_of("abb")),
]
COUNTED: dict[str, Any] = {
    "model": "default",
    "messages": CONVERSATION,
    "system": "Be brief.",
    "tools": [TOOL],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "disabled"},
    "output_config": {"effort": "low"},
    "chat_template_kwargs": {"flavour": "mint"},
    **CACHED,
}
