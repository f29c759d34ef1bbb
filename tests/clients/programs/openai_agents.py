"""OpenAI's Agents SDK: a loop of a call, its result and an answer, plain and streamed, over responses and chats.

Reads where the server is from standard input; prints what the SDK made of its answers, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Literal

from agents import (
    Agent,
    Model,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

PLAN = json.load(sys.stdin)
QUESTION = "How is the weather?"
asked: list[str] = []


@function_tool
def get_weather(city: Literal["Köln", "Rome"]) -> str:
    """What the weather in a city is like."""
    asked.append(city)
    return f"22 C in {city}"


def agent(model: Model) -> Agent[Any]:
    """Calls its tool first; the SDK lets it choose after that."""
    settings = ModelSettings(tool_choice="required", max_tokens=200, temperature=0.0, extra_body=PLAN["own"])
    return Agent(name="weather", instructions="Be brief.", model=model, tools=[get_weather], model_settings=settings)


def told(items: list[Any], output: Any) -> dict[str, Any]:
    """What is compared."""
    calls = asked.copy()
    asked.clear()
    return {"items": [item.type for item in items], "asked": calls, "output": output}


async def streamed(model: Model) -> dict[str, Any]:
    """The same loop, event by event."""
    run = Runner.run_streamed(agent(model), QUESTION)
    kinds = [event.data.type async for event in run.stream_events() if event.type == "raw_response_event"]
    return told(run.new_items, run.final_output) | {"events": sorted(set(kinds))}


async def plain(model: Model, **options: Any) -> dict[str, Any]:
    """The loop, answer by answer."""
    run = await Runner.run(agent(model), QUESTION, **options)
    return told(run.new_items, run.final_output)


async def main() -> None:
    """Runs all of them."""
    set_tracing_disabled(True)
    async with AsyncOpenAI(base_url=f"{PLAN['url']}/v1", api_key=PLAN["key"], max_retries=0) as client:
        responses = OpenAIResponsesModel(model=PLAN["model"], openai_client=client)
        chats = OpenAIChatCompletionsModel(model=PLAN["model"], openai_client=client)
        found = {
            "responses": await plain(responses),
            "responses, chained": await plain(responses, auto_previous_response_id=True),
            "responses, streamed": await streamed(responses),
            "chats": await plain(chats),
            "chats, streamed": await streamed(chats),
        }
    print(json.dumps(found))


asyncio.run(main())
