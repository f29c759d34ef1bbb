"""Bodies of POST /v1/responses with every field, for the clients' general `post`."""

from __future__ import annotations

from typing import Any

from support.clients.generation_cases import GENERATION, A, B

RESPONSES = "/v1/responses"
INPUT_TOKENS = "/v1/responses/input_tokens"

TOOL: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "What the weather is like",
    "parameters": {"type": "object"},
    "strict": False,
}
CONVERSATION: list[dict[str, Any]] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "How is the weather?"}]},
    {
        "type": "reasoning",
        "id": "rs_1",
        "status": "completed",
        "summary": [{"type": "summary_text", "text": "Hm."}],
        "content": [{"type": "reasoning_text", "text": "Hm."}],
        "encrypted_content": "",
    },
    {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "role": "assistant",
        "phase": "commentary",
        "content": [
            {"type": "output_text", "text": "Let me look.", "annotations": [], "logprobs": []},
            {"type": "refusal", "refusal": "No."},
        ],
    },
    {
        "type": "function_call",
        "id": "fc_1",
        "status": "completed",
        "call_id": "call_1",
        "name": "get_weather",
        "arguments": "{}",
    },
    {"type": "function_call_output", "id": "fco_1", "status": "completed", "call_id": "call_1", "output": "22 C"},
]
ALLOWED = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_weather"}]}
COUNTED: dict[str, Any] = {
    "model": "default",
    "input": CONVERSATION,
    "instructions": "Be brief.",
    "tools": [TOOL],
    "tool_choice": ALLOWED,
    "parallel_tool_calls": False,
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto", "generate_summary": "auto"},
    "truncation": "disabled",
    "chat_template_kwargs": {"enable_thinking": False},
    "enable_thinking": False,
}
# Shows no tools.
OWN_TEMPLATE = {"chat_template": "{{ messages[0].content }}"}
SHORT: dict[str, Any] = {"model": "default", "input": "Go", "max_output_tokens": 2, "store": False}
SCHEMA: dict[str, Any] = {"type": "json_schema", "name": "x", "description": "d", "schema": {}, "strict": True}
NUMBERS: dict[str, Any] = {
    case.option: value
    for case in GENERATION
    if isinstance(value := case.fields[case.option], (bool, int, float))
    and case.option not in ("max_tokens", "n", "stream", "prompt_logprobs", "min_tokens", "guided_json_object")
    # Not allowed together with `logits_processors`.
    and case.option != "thinking_token_budget"
}
EVERYTHING: dict[str, Any] = {
    **COUNTED,
    **NUMBERS,
    **SHORT,
    "min_tokens": 1,
    "input": CONVERSATION,
    "background": False,
    "stream": False,
    "include": ["message.output_text.logprobs"],
    "include_reasoning": True,
    "max_tool_calls": 3,
    "top_logprobs": 1,
    "metadata": {"a": "b"},
    "user": "somebody",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "service_tier": "auto",
    "request_id": "response-by-a-client",
    "timeout": 120,
    "stop": ["."],
    "stop_token_ids": [B],
    "bad_words": ["two"],
    "bad_words_token_ids": [[B]],
    "allowed_token_ids": [A, B],
    "logits_processors": {"LogitBiasLogitsProcessor": {}},
    "logits_processors_shadow": ["LogitBiasLogitsProcessor"],
    "logits_processors_trace": {"top_k": 1, "max_tokens": 1},
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "truncation_side": "right",
    "cache_salt": "of-one-tenant",
}
# Fields that exclude others of EVERYTHING, or each other.
EXCLUSIVE: list[dict[str, Any]] = [
    OWN_TEMPLATE,
    {"text": {"format": SCHEMA}},
    {"guided_json": {"type": "object"}},
    {"guided_json_object": True},
    {"guided_regex": "a+"},
    {"guided_choice": ["a", "b"]},
    {"guided_grammar": 'start: "a"'},
    {"structural_tag": {"triggers": ["<a>"], "structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}]}},
    {"structured_outputs": {"json": {"type": "object"}}},
    {"guided_json": {}, "guided_whitespace": "none"},
    {"guided_json": {}, "guided_when": {"after_tokens": 0}},
    {"guided_json": {}, "guided_whitespace_pattern": " ?"},
    {"logit_bias": {str(A): 100.0}},
    {"logits_processors_args": {"logit_bias": {str(A): 1.0}}},
    {"vllm_xargs": {"boom": 5}},
    {"thinking_token_budget": 5},
    {"stream_options": {"include_obfuscation": False}, "stream": True},
]
