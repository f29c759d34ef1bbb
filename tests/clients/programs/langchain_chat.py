"""LangChain's client for OpenAI-compatible servers: plain, streamed, blocking and not, tools, and embeddings.

Reads where the server is and what it is to say from standard input; prints what LangChain made of it, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from langchain_core.messages import AIMessageChunk, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

PLAN = json.load(sys.stdin)
QUESTION = [SystemMessage("Be brief."), HumanMessage("How is the weather in Köln?")]
SERVER: dict[str, Any] = {
    "base_url": f"{PLAN['url']}/v1",
    "api_key": PLAN["key"],
    "model": PLAN["model"],
    "max_retries": 0,
}


@tool
def get_weather(city: str) -> str:
    """What the weather in a city is like."""
    return f"22 C in {city}"


def chat(script: str, **options: Any) -> ChatOpenAI:
    """A model that says one of the plan's texts."""
    forced = {"logits_processors_args": {"forced_tokens": PLAN["scripts"][script]}}
    return ChatOpenAI(**SERVER, extra_body=forced, **options)


def joined(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    """The message that a stream came to."""
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    return whole


def told(message: BaseMessage, pieces: int = 1) -> dict[str, Any]:
    """What is compared."""
    metadata = getattr(message, "response_metadata", {})
    return {
        "text": message.content,
        "calls": [[call["name"], call["args"]] for call in getattr(message, "tool_calls", [])],
        "reason": metadata.get("finish_reason"),
        "tokens": (getattr(message, "usage_metadata", None) or {}).get("output_tokens"),
        "pieces": pieces,
    }


async def not_blocking() -> list[dict[str, Any]]:
    """One plain and one streamed answer."""
    plain = await chat("text").ainvoke(QUESTION)
    chunks = [chunk async for chunk in chat("text", stream_usage=True).astream(QUESTION)]
    return [told(plain), told(joined(chunks), len(chunks))]


def main() -> None:
    """Everything that is asked for."""
    sampling = {"temperature": 0.5, "top_p": 0.9, "seed": 5, "n": 1, "stop": ["never"], "max_tokens": 200}
    plain = chat("text", **sampling, frequency_penalty=0.1, presence_penalty=0.1, logprobs=True, top_logprobs=2)
    chunks = list(chat("text", stream_usage=True).stream(QUESTION))
    called = chat("call").bind_tools([get_weather]).invoke(QUESTION)
    pieces = list(chat("call", stream_usage=True).bind_tools([get_weather]).stream(QUESTION))
    results = [ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]) for call in called.tool_calls]
    answered = chat("text").bind_tools([get_weather], tool_choice="auto").invoke([*QUESTION, called, *results])
    legacy = {**SERVER, "max_tokens": 5, "temperature": 0}
    vectors = OpenAIEmbeddings(**SERVER, check_embedding_ctx_length=False).embed_documents(["the dog", "the fox"])
    shown = {
        "plain": told(plain.invoke(QUESTION)),
        "streamed": told(joined(chunks), len(chunks)),
        "called": told(called),
        "streamed call": told(joined(pieces), len(pieces)),
        "results": [message.content for message in results],
        "answered": told(answered),
        "not blocking": asyncio.run(not_blocking()),
        "batch": [told(message) for message in chat("text").batch([QUESTION, QUESTION])],
        "completions": [OpenAI(**legacy).invoke("the dog"), "".join(OpenAI(**legacy).stream("the dog"))],
        "vectors": [len(vector) for vector in vectors],
    }
    print(json.dumps(shown))


main()
