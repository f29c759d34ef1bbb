"""LiteLLM's ways to a server with OpenAI's interfaces: chats, completions, responses and embeddings.

Reads where the server is and what it is to say from standard input; prints what LiteLLM made of it, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

# Read at the import: prices of models come from the package's own file, not from the network.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

PLAN = json.load(sys.stdin)
# It goes to standard output.
litellm.suppress_debug_info = True
SERVER: dict[str, Any] = {
    "model": f"openai/{PLAN['model']}",
    "api_base": f"{PLAN['url']}/v1",
    "api_key": PLAN["key"],
    "max_retries": 0,
}
MESSAGES = [{"role": "user", "content": "How is the weather in Köln?"}]
SAID = {"extra_body": {"logits_processors_args": {"forced_tokens": PLAN["scripts"]["text"]}}}
CALLED = {"extra_body": {"logits_processors_args": {"forced_tokens": PLAN["scripts"]["call"]}}}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]


def call_of(answer: Any) -> list[Any]:
    """Name and arguments of the only call."""
    (call,) = answer.choices[0].message.tool_calls
    return [call.function.name, json.loads(call.function.arguments)]


def text_of(response: Any) -> str:
    """The text of a response's only message."""
    (message,) = [item for item in response.output if item.type == "message"]
    return str(message.content[0].text)


chat = litellm.completion(**SERVER, messages=MESSAGES, **SAID)
pieces = [
    chunk.choices[0].delta.content or ""
    for chunk in litellm.completion(**SERVER, messages=MESSAGES, stream=True, **SAID)
]
response = litellm.responses(**SERVER, input="How is the weather?", **SAID)
events = list(litellm.responses(**SERVER, input="How is the weather?", stream=True, **SAID))
embedding = litellm.embedding(**SERVER, input=["one"], encoding_format="float")
try:
    litellm.completion(**SERVER, messages=MESSAGES, temperature=-1)
    refusal = ""
except litellm.BadRequestError as error:
    refusal = str(error)
print(
    json.dumps(
        {
            "chat": chat.choices[0].message.content,
            "streamed": "".join(pieces),
            "call": call_of(litellm.completion(**SERVER, messages=MESSAGES, tools=TOOLS, **CALLED)),
            "response": text_of(response),
            "events": [str(getattr(event.type, "value", event.type)) for event in events],
            "streamed response": text_of(events[-1].response),
            "vector": len(embedding.data[0]["embedding"]),
            "refusal": refusal,
        }
    )
)
