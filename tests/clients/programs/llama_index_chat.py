"""LlamaIndex's client for OpenAI-compatible servers: plain, streamed, blocking and not, and tools.

Reads where the server is and what it is to say from standard input; prints what LlamaIndex made of it, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, MessageRole
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

PLAN = json.load(sys.stdin)
QUESTION = [
    ChatMessage(role=MessageRole.SYSTEM, content="Be brief."),
    ChatMessage(role=MessageRole.USER, content="How is the weather in Köln?"),
]


def get_weather(city: str) -> str:
    """What the weather in a city is like."""
    return f"22 C in {city}"


WEATHER = FunctionTool.from_defaults(get_weather)


def model(script: str, *, is_chat_model: bool = True) -> OpenAILike:
    """A model that says one of the plan's texts."""
    forced = {"logits_processors_args": {"forced_tokens": PLAN["scripts"][script]}}
    return OpenAILike(
        model=PLAN["model"],
        api_base=f"{PLAN['url']}/v1",
        api_key=PLAN["key"],
        is_chat_model=is_chat_model,
        is_function_calling_model=True,
        context_window=1024,
        max_retries=0,
        max_tokens=200,
        additional_kwargs={"extra_body": forced},
    )


def told(response: ChatResponse, llm: OpenAILike, pieces: int = 1) -> dict[str, Any]:
    """What is compared."""
    calls = llm.get_tool_calls_from_response(response, error_on_no_tool_call=False)
    return {
        "text": response.message.content or "",
        "calls": [[call.tool_name, call.tool_kwargs] for call in calls],
        "pieces": pieces,
    }


async def not_blocking() -> list[dict[str, Any]]:
    """One plain and one streamed answer, and a call."""
    llm, caller = model("text"), model("call")
    plain = await llm.achat(QUESTION)
    parts = [part async for part in await llm.astream_chat(QUESTION)]
    called = await caller.achat_with_tools([WEATHER], chat_history=QUESTION)
    return [told(plain, llm), told(parts[-1], llm, len(parts)), told(called, caller)]


def main() -> None:
    """Everything that is asked for."""
    llm, caller, writer = model("text"), model("call"), model("text", is_chat_model=False)
    parts = list(llm.stream_chat(QUESTION))
    called = caller.chat_with_tools([WEATHER], chat_history=QUESTION)
    pieces = list(caller.stream_chat_with_tools([WEATHER], chat_history=QUESTION))
    (call,) = caller.get_tool_calls_from_response(called)
    result = ChatMessage(
        role=MessageRole.TOOL,
        content=WEATHER(**call.tool_kwargs).content,
        additional_kwargs={"tool_call_id": call.tool_id},
    )
    answered = llm.chat_with_tools([WEATHER], chat_history=[*QUESTION, called.message, result])
    shown = {
        "plain": told(llm.chat(QUESTION), llm),
        "streamed": told(parts[-1], llm, len(parts)),
        "called": told(called, caller),
        "streamed call": told(pieces[-1], caller, len(pieces)),
        "results": [result.content],
        "answered": told(answered, llm),
        "not blocking": asyncio.run(not_blocking()),
        "completions": [writer.complete("the dog").text, list(writer.stream_complete("the dog"))[-1].text],
    }
    print(json.dumps(shown))


main()
