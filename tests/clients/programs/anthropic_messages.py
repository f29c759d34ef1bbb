"""Anthropic's package at this server: plain, streamed, thinking, a loop of tool calls, counts, errors, and its runner.

Reads where the server is and what it is to say from standard input; prints what the package read, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import anthropic
from anthropic import beta_tool

PLAN = json.load(sys.stdin)
QUESTION: list[Any] = [{"role": "user", "content": "How is the weather in Köln?"}]
SERVER: dict[str, Any] = {"base_url": PLAN["url"], "max_retries": 0}
WEATHER: Any = {
    "name": "get_weather",
    "description": "What the weather is like",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CONTENT = ("text", "thinking", "input")
client = anthropic.Anthropic(api_key=PLAN["key"], **SERVER)


def asked(script: str, **fields: Any) -> dict[str, Any]:
    """The arguments of a request that is answered with one of the plan's texts."""
    forced = {"logits_processors_args": {"forced_tokens": PLAN["scripts"][script]}}
    return {"model": PLAN["model"], "max_tokens": 200, "messages": QUESTION, "extra_body": forced, **fields}


def told(message: Any, pieces: int = 1) -> dict[str, Any]:
    """What is compared."""
    blocks = [block.model_dump(exclude_none=True) for block in message.content]
    return {
        "blocks": [[block["type"], next(block[name] for name in CONTENT if name in block)] for block in blocks],
        "reason": message.stop_reason,
        "sequence": message.stop_sequence,
        "tokens": message.usage.output_tokens,
        "signed": all(block["signature"] for block in blocks if block["type"] == "thinking"),
        "pieces": pieces,
    }


def streamed(script: str, **fields: Any) -> dict[str, Any]:
    """The message that the package's own parser puts together."""
    with client.messages.stream(**asked(script, **fields)) as stream:
        pieces = sum(event.type == "content_block_delta" for event in stream)
        return told(stream.get_final_message(), pieces)


def raw(script: str) -> list[str]:
    """The types of the events, as the package reads them."""
    with client.messages.create(**asked(script), stream=True) as events:
        return [event.type for event in events]


def loop() -> dict[str, Any]:
    """Runs the calls of each answer until one has none."""
    messages, scripts, results = list(QUESTION), ["call", "text"], []
    for script in scripts:
        message = client.messages.create(**asked(script, messages=messages, tools=[WEATHER]))
        if message.stop_reason != "tool_use":
            return {"answer": told(message), "results": results, "turns": len(messages)}
        called = [block for block in message.content if block.type == "tool_use"]
        results += [f"22 C in {block.input['city']}" for block in called]
        messages.append({"role": "assistant", "content": message.content})
        found = [{"type": "tool_result", "tool_use_id": block.id, "content": results[-1]} for block in called]
        messages.append({"role": "user", "content": found})
    return {"answer": None, "results": results, "turns": len(messages)}


@beta_tool
def get_weather(city: str) -> str:
    """What the weather in a city is like."""
    return f"22 C in {city}"


def runner() -> dict[str, Any]:
    """The package's own loop, which first tries to send only what is new; it ends after so many answers."""
    fields = asked("call", tools=[get_weather], max_iterations=2)
    messages = list(client.beta.messages.tool_runner(**fields))
    return {"reasons": [message.stop_reason for message in messages]}


async def not_blocking() -> list[dict[str, Any]]:
    """One plain and one streamed answer."""
    async with anthropic.AsyncAnthropic(api_key=PLAN["key"], **SERVER) as other:
        plain = await other.messages.create(**asked("text"))
        async with other.messages.stream(**asked("text")) as stream:
            return [told(plain), told(await stream.get_final_message())]


def raised(ask: Callable[[], Any]) -> list[Any]:
    """The class, the type, the message and the code of the package's error."""
    try:
        ask()
    except anthropic.APIStatusError as error:
        return [type(error).__name__, error.type, error.api_message, error.error_code, error.request_id is not None]
    return []


def errors() -> list[list[Any]]:
    """What the package raises for a body, a key and a model that are wrong, and for a request that fails."""
    stranger = anthropic.Anthropic(api_key="another", **SERVER)
    # Its text is known, so that it is not at its end by chance before the processor raises.
    failing = {"logits_processors_args": {"forced_tokens": PLAN["scripts"]["text"], "boom": 2}}

    def fails_within() -> None:
        with client.messages.stream(**asked("text", extra_body=failing)) as stream:
            stream.until_done()

    return [
        raised(lambda: client.messages.create(**asked("text", max_tokens=0))),
        raised(lambda: client.messages.create(**asked("text", tools=[{"name": "f"}]))),
        raised(lambda: stranger.messages.create(**asked("text"))),
        raised(lambda: client.messages.create(**asked("text", model="claude"))),
        raised(lambda: client.messages.create(**asked("text", extra_body=failing))),
        raised(fails_within),
    ]


def main() -> None:
    """Everything that is asked for."""
    bearer = anthropic.Anthropic(auth_token=PLAN["key"], **SERVER)
    biased = asked("text", max_tokens=3, extra_body={"logit_bias": {"70": 100.0}, "return_token_ids": True})
    colour = {"format": {"type": "json_schema", "schema": {"enum": ["red"]}}}
    at_once = {"guided_when": {"after_tokens": 0}}
    in_json = asked("text", output_config=colour, extra_body={"temperature": 0, **at_once})
    shown = {
        "plain": told(client.messages.create(**asked("text"))),
        "bearer": told(bearer.messages.create(**asked("text"))),
        "streamed": streamed("text"),
        "events": raw("text"),
        "stopped": told(client.messages.create(**asked("text", stop_sequences=["sunny"]))),
        "thought": [told(client.messages.create(**asked("thought"))), streamed("thought")],
        "called": [told(client.messages.create(**asked("call", tools=[WEATHER]))), streamed("call", tools=[WEATHER])],
        "loop": loop(),
        "runner": runner(),
        "biased": client.messages.create(**biased).model_extra["token_ids"],
        "json": told(client.messages.create(**in_json))["blocks"],
        "counted": client.messages.count_tokens(model="default", messages=QUESTION, system="Be brief.").input_tokens,
        "input": client.messages.create(**asked("text", system="Be brief.")).usage.model_dump(),
        "not blocking": asyncio.run(not_blocking()),
        "errors": errors(),
    }
    print(json.dumps(shown))


main()
