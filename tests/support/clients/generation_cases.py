"""Fields that chats and completions share."""

from __future__ import annotations

import re
from typing import Any

from support.clients.answer import Answer
from support.clients.case import (
    Asker,
    Case,
    another_text,
    num_tokens_is,
    prompt_is_cut,
    same_as_ever,
    text_is,
    tokens_are,
)
from support.forced import AT_ONCE

# A token of the served model, and two others.
A, B, C = 70, 71, 72
BEGIN, END = 1, 2
TEXT = "one two three"
RANDOM: dict[str, Any] = {"temperature": 1.0, "seed": 5}
ONLY_A: dict[str, Any] = {"logit_bias": {str(A): 100.0}}
HOT: dict[str, Any] = {"temperature": 2.0}
LONGER: dict[str, Any] = {"max_tokens": 24}
IDS: dict[str, Any] = {"return_token_ids": True}


def same_as_greedy(answer: Answer, asker: Asker) -> None:
    """However hot it is, there is one token to choose from."""
    assert answer.texts == asker.answer().texts
    assert answer.texts != asker.answer(**RANDOM | HOT).texts


def another_text_in_the_end(answer: Answer, asker: Asker) -> None:
    """It takes a while until a token comes again."""
    assert answer.texts != asker.answer(**LONGER).texts


def seed_is_kept(answer: Answer, asker: Asker) -> None:
    """The same again with the same seed, and something else with another."""
    assert answer == asker.answer(**RANDOM)
    assert answer.texts != asker.answer(**RANDOM | {"seed": 6}).texts


def choices_differ(answer: Answer, _: Asker) -> None:
    """Each choice has a seed of its own."""
    assert len(set(answer.texts)) == len(answer.choices) == 3
    assert answer.num_output_tokens == 3 * 8


def without(token: int) -> Any:
    def check(answer: Answer, _: Asker) -> None:
        assert answer.choice.token_ids
        assert token not in answer.choice.token_ids

    return check


def without_the_word(answer: Answer, _: Asker) -> None:
    assert "two" not in answer.choice.text


def among_two(answer: Answer, _: Asker) -> None:
    assert set(answer.choice.token_ids) <= {A, B}


def thinks_nothing(answer: Answer, asker: Asker) -> None:
    begun = asker.encode("<think>") + asker.encode("</think>")
    assert answer.choice.token_ids[: len(begun)] == begun


def ids_are_there(answer: Answer, _: Asker) -> None:
    assert answer.prompt_token_ids is not None
    assert len(answer.prompt_token_ids) == answer.num_prompt_tokens
    assert len(answer.choice.token_ids) == answer.num_output_tokens


def prompt_is_rated(answer: Answer, _: Asker) -> None:
    assert answer.prompt_logprobs is not None
    assert len(answer.prompt_logprobs) == answer.num_prompt_tokens
    assert answer.prompt_logprobs[0] is None


def id_is_made_of_it(answer: Answer, _: Asker) -> None:
    assert answer.id in ("chatcmpl-of-a-client", "cmpl-of-a-client")


def stopped_by(reason: str, text: str) -> Any:
    def check(answer: Answer, _: Asker) -> None:
        choice = answer.choice
        assert (choice.text, choice.finish_reason, choice.stop_reason) == (text, "stop", reason)

    return check


def usage_in_every_chunk(answer: Answer, _: Asker) -> None:
    counts = [body["usage"]["completion_tokens"] for body in answer.bodies]
    assert counts == sorted(counts)
    assert counts[-1] == 8


def in_pieces_of_three(answer: Answer, _: Asker) -> None:
    """A piece has more tokens if the stream began after several steps."""
    sizes = [len(body["choices"][0].get("token_ids") or ()) for body in answer.bodies if body["choices"]]
    pieces = list(filter(None, sizes))
    assert sum(pieces) == 8
    assert min(pieces[1:-1], default=3) >= 3


def no_usage(answer: Answer, _: Asker) -> None:
    assert not any(body.get("usage") for body in answer.bodies)
    assert all(body["choices"] for body in answer.bodies)


def usage_at_the_end(answer: Answer, asker: Asker) -> None:
    *parts, last = answer.bodies
    assert not any(body.get("usage") for body in parts)
    assert last["choices"] == []
    assert answer == asker.answer()


def begin_is_shown(answer: Answer, _: Asker) -> None:
    assert "<s>" in answer.choice.text


def begin_is_not_shown(answer: Answer, _: Asker) -> None:
    assert "<s>" not in answer.choice.text
    assert answer.num_output_tokens == 4


def matches(pattern: str) -> Any:
    """The whole text, when it may be long enough."""

    def check(answer: Answer, _: Asker) -> None:
        assert re.fullmatch(pattern, answer.choice.text), answer.choice.text
        assert answer.choice.finish_reason == "stop"

    return check


def begins_an_object(answer: Answer, _: Asker) -> None:
    """A model that knows nothing need not come to its end."""
    assert answer.choice.text.lstrip().startswith("{")


def traced(count: int) -> Any:
    """The first tokens of the choice, each with what the model made of it first and the sampler last."""

    def check(answer: Answer, asker: Asker) -> None:
        assert answer.texts == asker.answer().texts
        choices = [choice for body in answer.bodies for choice in body["choices"]]
        told = [each for choice in choices for each in choice.get("logits_processors_trace") or []]
        assert [each["token_id"] for each in told] == answer.choice.token_ids[:count]
        assert len(told) == count
        for each in told:
            assert (each["stages"][0]["name"], each["stages"][-1]["name"]) == ("raw", "final")

    return check


def only_shadowed(answer: Answer, asker: Asker) -> None:
    """Nothing changed, but what would have is counted."""
    assert answer.texts == asker.answer().texts
    choices = [choice for body in answer.bodies for choice in body["choices"]]
    (counts,) = [choice["logits_processors_shadow"] for choice in choices if choice.get("logits_processors_shadow")]
    assert counts == {"LogitBiasLogitsProcessor": {"tokens": 8, "changed": 8, "faults": 0}}


ROOM: dict[str, Any] = {"max_tokens": 24, **AT_ONCE}
COLOURS: dict[str, Any] = {"enum": ["red", "blue"]}
COLOUR = '"(red|blue)"'
TAG: dict[str, Any] = {"structures": [{"begin": "<c>", "schema": COLOURS, "end": "</c>"}], "triggers": ["<c"]}
TAGGED = 'I say <c>"blue"</c>'
NAMED: dict[str, Any] = {"name": "colour", "description": "One of two", "schema": COLOURS, "strict": True}
JSON_SCHEMA: dict[str, Any] = {"type": "json_schema", "json_schema": NAMED}
ONE: dict[str, Any] = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
TWICE: dict[str, Any] = {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2}
GUIDED = [
    Case("response_format", {"response_format": {"type": "text"}}, same_as_ever),
    Case("response_format", {"response_format": {"type": "json_object"}, **AT_ONCE}, begins_an_object),
    Case("response_format", {"response_format": JSON_SCHEMA, **ROOM}, matches(COLOUR)),
    Case("response_format", {"response_format": {"type": "structural_tag", **TAG}}, text_is(TAGGED), says=TAGGED),
    Case("guided_json", {"guided_json": COLOURS, **ROOM}, matches(COLOUR)),
    Case("guided_json_object", {"guided_json_object": True, **AT_ONCE}, begins_an_object),
    Case("guided_whitespace", {"guided_json": TWICE, "guided_whitespace": "none", **ROOM}, matches(r"\[1,1\]")),
    Case(
        "guided_whitespace_pattern",
        {"guided_json": TWICE, "guided_whitespace_pattern": "[ ]", **ROOM},
        matches(r"\[ ?1 ?, ?1 ?\]"),
    ),
    Case("guided_regex", {"guided_regex": "[ab]{3}", **ROOM}, matches("[ab]{3}")),
    Case("guided_choice", {"guided_choice": ["yes", "no"], **ROOM}, matches("yes|no")),
    Case("guided_grammar", {"guided_grammar": 'start: "ab" "cd"', **ROOM}, matches("abcd")),
    Case("guided_when", {"guided_choice": ["yes", "no"], **ROOM}, matches("yes|no")),
    Case("structural_tag", {"structural_tag": TAG}, text_is(TAGGED), says=TAGGED),
    Case("structured_outputs", {"structured_outputs": {"choice": ["yes", "no"]}, **ROOM}, matches("yes|no")),
    Case("structured_outputs", {"structured_outputs": {"json_object": True}, **AT_ONCE}, begins_an_object),
    Case(
        "structured_outputs",
        {"structured_outputs": {"json": TWICE, "disable_any_whitespace": True}, **ROOM},
        matches(r"\[1,1\]"),
    ),
    Case(
        "structured_outputs",
        {"structured_outputs": {"grammar": 'root ::= "ab" tail\ntail ::= "cd" | "ce"'}, **ROOM},
        matches("abc[de]"),
    ),
    Case(
        "structured_outputs",
        {
            "structured_outputs": {"json": ONE, "disable_additional_properties": True, "whitespace_pattern": "[ ]"},
            **ROOM,
        },
        matches(r'\{ ?"a" ?: ?1 ?\}'),
    ),
    Case("structured_outputs", {"structured_outputs": {"structural_tag": TAG}}, text_is(TAGGED), says=TAGGED),
]
SAYS_BEGIN: dict[str, Any] = {"logits_processors_args": {"forced_tokens": [A, BEGIN, B]}}
GENERATION = [
    *GUIDED,
    Case("model", {"model": "default"}, same_as_ever),
    Case("stream", {"stream": True}, same_as_ever, streamed=True),
    Case("stream", {"stream": False}, same_as_ever, streamed=False),
    Case("stream_options", {"stream_options": {"include_usage": False}}, no_usage, streamed=True),
    Case("stream_options", {"stream_options": {"include_usage": True}}, usage_at_the_end, streamed=True),
    Case(
        "stream_options",
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        usage_in_every_chunk,
        streamed=True,
    ),
    Case("max_tokens", {"max_tokens": 3}, num_tokens_is(3, "length")),
    Case("n", {"n": 3, **RANDOM}, choices_differ),
    Case("temperature", RANDOM, another_text),
    Case("temperature", {"temperature": 0.0, "seed": 6}, same_as_ever),
    Case("top_p", {"top_p": 1e-6, **RANDOM, **HOT}, same_as_greedy),
    Case("top_k", {"top_k": 1, **RANDOM, **HOT}, same_as_greedy),
    Case("min_p", {"min_p": 1.0, **RANDOM, **HOT}, same_as_greedy),
    Case("repetition_penalty", {"repetition_penalty": 2.0, **LONGER}, another_text_in_the_end),
    Case("presence_penalty", {"presence_penalty": 2.0, **LONGER}, another_text_in_the_end),
    Case("frequency_penalty", {"frequency_penalty": 2.0, **LONGER}, another_text_in_the_end),
    Case("bad_words", {"bad_words": ["two"]}, without_the_word, says=TEXT),
    Case("bad_words_token_ids", {"bad_words_token_ids": [[A]], **ONLY_A, **IDS}, without(A)),
    Case("allowed_token_ids", {"allowed_token_ids": [A, B], **IDS}, among_two),
    Case("min_tokens", {"min_tokens": 40, "max_tokens": 40}, num_tokens_is(40, "length"), says="one"),
    Case("prompt_logprobs", {"prompt_logprobs": 1}, prompt_is_rated, streamed=False),
    Case("seed", RANDOM, seed_is_kept),
    Case("stream_interval", {"stream_interval": 3, **ONLY_A, **IDS}, in_pieces_of_three, streamed=True),
    Case("stream_interval", {"stream_interval": 3}, same_as_ever, streamed=False),
    Case("stop", {"stop": "wo t"}, stopped_by("wo t", "one t"), says=TEXT),
    Case("stop", {"stop": ["zero", "hre"]}, stopped_by("hre", "one two t"), says=TEXT),
    Case("stop_token_ids", {"stop_token_ids": [A], **ONLY_A}, num_tokens_is(1, "stop")),
    Case(
        "include_stop_str_in_output",
        {"include_stop_str_in_output": True, "stop": "wo"},
        stopped_by("wo", "one two"),
        says=TEXT,
    ),
    Case("skip_special_tokens", {"skip_special_tokens": False, **SAYS_BEGIN}, begin_is_shown),
    Case("skip_special_tokens", {"skip_special_tokens": True, **SAYS_BEGIN}, begin_is_not_shown),
    Case("speculative", {"speculative": False, "max_tokens": 3}, num_tokens_is(3, "length")),
    Case("ignore_eos", {"ignore_eos": True, "max_tokens": 40}, num_tokens_is(40, "length"), says="one"),
    Case("logit_bias", {**ONLY_A, **IDS, "max_tokens": 3}, tokens_are(A, A, A)),
    Case("logits_processors_args", {"logits_processors_args": ONLY_A, **IDS, "max_tokens": 3}, tokens_are(A, A, A)),
    Case(
        "logits_processors",
        {"logits_processors": {"ForcesTokens": {"forced_tokens": [C, A]}}, **IDS},
        tokens_are(C, A, END),
    ),
    Case(
        "logits_processors",
        {"logits_processors": [{"name": "LogitBiasLogitsProcessor", "params": ONLY_A}], **IDS, "max_tokens": 2},
        tokens_are(A, A),
    ),
    Case("logits_processors_trace", {"logits_processors_trace": True, **IDS}, traced(8)),
    Case("logits_processors_trace", {"logits_processors_trace": {"top_k": 2, "max_tokens": 3}, **IDS}, traced(3)),
    Case(
        "logits_processors_shadow", {"logits_processors_shadow": ["LogitBiasLogitsProcessor"], **ONLY_A}, only_shadowed
    ),
    Case("vllm_xargs", {"vllm_xargs": {"forced_tokens": [B, C]}, **IDS}, tokens_are(B, C, END)),
    Case("return_token_ids", IDS, ids_are_there),
    Case(
        "thinking_token_budget",
        {"thinking_token_budget": 0, **IDS},
        thinks_nothing,
        says="<think>one two three</think>Yes.",
    ),
    Case("cache_salt", {"cache_salt": "of-one-tenant"}, same_as_ever),
    Case("truncate_prompt_tokens", {"truncate_prompt_tokens": 2, **IDS}, prompt_is_cut(0, 2)),
    Case("truncate_prompt_tokens", {"truncate_prompt_tokens": -1}, same_as_ever),
    Case("truncation_side", {"truncation_side": "left", "truncate_prompt_tokens": 2, **IDS}, prompt_is_cut(0, 2)),
    Case("truncation_side", {"truncation_side": "right", "truncate_prompt_tokens": 2, **IDS}, prompt_is_cut(2, 0)),
    Case("add_special_tokens", {"add_special_tokens": True}, same_as_ever),
    Case("request_id", {"request_id": "of-a-client"}, id_is_made_of_it),
    Case("timeout", {"timeout": 120.0}, same_as_ever),
    Case("user", {"user": "somebody"}, same_as_ever),
    Case("metadata", {"metadata": {"for": "something"}}, same_as_ever),
    Case("safety_identifier", {"safety_identifier": "somebody"}, same_as_ever),
    Case("prompt_cache_key", {"prompt_cache_key": "something"}, same_as_ever),
    Case("prompt_cache_retention", {"prompt_cache_retention": "24h"}, same_as_ever),
    Case("store", {"store": True}, same_as_ever),
    Case("service_tier", {"service_tier": "flex"}, same_as_ever),
]
