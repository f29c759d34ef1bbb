"""Fields of chats alone, and bodies that are refused by name."""

from __future__ import annotations

import json
from typing import Any

from support.clients.answer import Answer
from support.clients.case import (
    USER,
    Asker,
    Case,
    num_tokens_is,
    prompt_has,
    prompt_is,
    text_is,
)
from support.clients.generation_cases import GENERATION, IDS, TEXT

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "What the weather is like",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
STRICT_WEATHER: dict[str, Any] = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
NAMED_CHOICE: dict[str, Any] = {"type": "function", "function": {"name": "get_weather"}}
ARGUMENTS = {"city": "Köln"}
CALL = f'<tool_call>{{"name": "get_weather", "arguments": {json.dumps(ARGUMENTS, ensure_ascii=False)}}}</tool_call>'
# The frame to which a grammar holds calls.
FRAMED_CALL = CALL.replace("<tool_call>", "<tool_call>\n").replace("</tool_call>", "\n</tool_call>")
THOUGHT = "<think>Hm.</think>Yes."
CALLED = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}, "index": 0}
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "developer", "content": [{"type": "text", "text": "Very"}, {"type": "text", "text": " brief."}]},
    {"role": "user", "content": "Weather?", "name": "Ann"},
    {"role": "assistant", "content": None, "tool_calls": [CALLED], "reasoning_content": "Hm."},
    {"role": "tool", "content": "22 C", "tool_call_id": "call_1"},
    {"role": "assistant", "content": "22 C.", "refusal": None},
    {"role": "user", "content": "Thanks."},
]
SHOWS_ALL = "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ m.name }}{{ m.tool_call_id }};{% endfor %}"
SHOWN = "system:Be brief.;system:Very brief.;user:Weather?Ann;assistant:;tool:22 Ccall_1;assistant:22 C.;user:Thanks.;"


def called(times: int) -> Any:
    def check(answer: Answer, _: Asker) -> None:
        assert [(name, json.loads(arguments)) for name, arguments in answer.choice.calls] == [
            ("get_weather", ARGUMENTS)
        ] * times
        assert answer.choice.finish_reason == "tool_calls"

    return check


def rated(most_likely: int) -> Any:
    def check(answer: Answer, _: Asker) -> None:
        tokens = answer.choice.logprobs["content"]
        assert len(tokens) == answer.num_output_tokens
        assert {len(each["top_logprobs"]) for each in tokens} == {most_likely}
        assert all(each["logprob"] <= 0 for each in tokens)

    return check


def names_ids(answer: Answer, _: Asker) -> None:
    tokens = answer.choice.logprobs["content"]
    assert [each["token"] for each in tokens] == [f"token_id:{token}" for token in answer.choice.token_ids]
    assert {top["token"].partition(":")[0] for each in tokens for top in each["top_logprobs"]} == {"token_id"}


def thought(reasoning: str) -> Any:
    def check(answer: Answer, _: Asker) -> None:
        assert (answer.choice.reasoning, answer.choice.text) == (reasoning, "Yes.")

    return check


CHAT_CASES = [
    *GENERATION,
    Case("messages", {"messages": CONVERSATION, "chat_template": SHOWS_ALL, **IDS}, prompt_is(SHOWN)),
    Case("prompt_token_ids", {"prompt_token_ids": [70, 71, 72], "messages": []}, prompt_has(3)),
    Case("max_completion_tokens", {"max_completion_tokens": 3}, num_tokens_is(3, "length")),
    Case("logprobs", {"logprobs": True}, rated(0)),
    Case("top_logprobs", {"logprobs": True, "top_logprobs": 2}, rated(2)),
    Case(
        "return_tokens_as_token_ids",
        {"return_tokens_as_token_ids": True, "logprobs": True, "top_logprobs": 2, **IDS},
        names_ids,
    ),
    Case("tools", {"tools": [WEATHER]}, called(1), says=CALL),
    Case("tools", {"tools": [WEATHER]}, called(2), says=CALL + CALL),
    Case("tool_choice", {"tools": [WEATHER], "tool_choice": "none"}, text_is(CALL), says=CALL),
    Case("tool_choice", {"tools": [WEATHER], "tool_choice": "auto"}, called(1), says=CALL),
    Case("parallel_tool_calls", {"tools": [WEATHER], "parallel_tool_calls": False}, called(1), says=CALL + CALL),
    Case("tools", {"tools": [STRICT_WEATHER]}, called(1), says=FRAMED_CALL),
    Case("tool_choice", {"tools": [WEATHER], "tool_choice": "required"}, called(1), says=FRAMED_CALL),
    Case("tool_choice", {"tools": [WEATHER], "tool_choice": NAMED_CHOICE}, called(1), says=FRAMED_CALL),
    Case("chat_template", {"chat_template": "Say {{ messages[0].content }}", **IDS}, prompt_is("Say Hello!")),
    Case(
        "chat_template_kwargs",
        {"chat_template_kwargs": {"flavour": "mint"}, "chat_template": "A {{ flavour }}", **IDS},
        prompt_is("A mint"),
    ),
    Case(
        "enable_thinking",
        {"enable_thinking": False, "chat_template": "{{ 'hm' if enable_thinking else 'go' }}", **IDS},
        prompt_is("go"),
    ),
    Case(
        "add_generation_prompt",
        {"add_generation_prompt": False, "chat_template": "{{ add_generation_prompt }}", **IDS},
        prompt_is("False"),
    ),
    Case(
        "continue_final_message",
        {
            "continue_final_message": True,
            "add_generation_prompt": False,
            "messages": [*USER, {"role": "assistant", "content": "So far"}],
            "chat_template": "{% for m in messages %}<{{ m.content }}>{% endfor %}",
            **IDS,
        },
        prompt_is("<Hello!><So far"),
    ),
    *(
        Case(name, {name: "low", "chat_template": "{{ %s }}" % name, **IDS}, prompt_is("low"))  # noqa: UP031 - braces
        for name in ("reasoning_effort", "verbosity")
    ),
    Case("prediction", {"prediction": {"type": "content", "content": TEXT}}, text_is(TEXT), says=TEXT),
    Case("include_reasoning", {"include_reasoning": True}, thought("Hm."), says=THOUGHT),
    Case("include_reasoning", {"include_reasoning": False}, thought(""), says=THOUGHT),
]

# What a client may send and this server does not do, and the field that the refusal names.
CHAT_REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("audio", {"audio": {"format": "wav", "voice": "ash"}}),
    ("modalities", {"modalities": ["text", "audio"]}),
    ("functions", {"functions": [{"name": "f"}]}),
    ("function_call", {"function_call": "auto"}),
    ("web_search_options", {"web_search_options": {}}),
    ("spaces_between_special_tokens", {"spaces_between_special_tokens": False}),
    ("moderation", {"moderation": {"model": "some"}}),
    ("prompt_cache_options", {"prompt_cache_options": {}}),
    (
        "response_format.json_schema.schema",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 7}}}},
    ),
    ("tool_choice", {"tool_choice": "required"}),
    ("guided_json", {"guided_json": {}, "guided_regex": "a"}),
    ("stream_options", {"stream_options": {"include_usage": True}}),
    ("top_logprobs", {"top_logprobs": 2}),
    ("temperature", {"temperature": -1}),
    ("messages.0.content.0.type", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
    ("never_heard_of", {"never_heard_of": 1}),
]
