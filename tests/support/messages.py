"""Anthropic's Messages API over plain HTTP: what tests of it share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx

from support.chat import HELLO, REQUEST_SECONDS
from support.server import ServerProcess

WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "What the weather is like",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ARGUMENTS: dict[str, Any] = {"city": "Köln"}
CALL = f'<tool_call>{{"name": "get_weather", "arguments": {json.dumps(ARGUMENTS, ensure_ascii=False)}}}</tool_call>'


@dataclass(frozen=True)
class Event:
    """One event of a stream: its name, and the object in its data."""

    name: str
    data: dict[str, Any]


def body_of(**fields: Any) -> dict[str, Any]:
    """A body with these fields."""
    return {"messages": HELLO, "max_tokens": 100, "temperature": 0, **fields}


def post(server: ServerProcess, path: str = "/v1/messages", status: int = 200, **fields: Any) -> dict[str, Any]:
    """The answer to a body with these fields."""
    answer = httpx.post(f"{server.url}{path}", json=body_of(**fields), timeout=REQUEST_SECONDS)
    if answer.status_code != status:
        raise RuntimeError(f"{answer.status_code}: {answer.text}")
    found: dict[str, Any] = answer.json()
    return found


def streamed(server: ServerProcess, **fields: Any) -> list[Event]:
    """All events of a streamed answer."""
    answer = httpx.post(f"{server.url}/v1/messages", json=body_of(stream=True, **fields), timeout=REQUEST_SECONDS)
    if answer.status_code != httpx.codes.OK:
        raise RuntimeError(f"{answer.status_code}: {answer.text}")
    *events, rest = answer.text.split("\n\n")
    if rest:
        raise RuntimeError(f"the stream ended within an event: {rest}")
    return [_event(*each.split("\n")) for each in events]


def _event(name: str, data: str) -> Event:
    return Event(name.removeprefix("event: "), json.loads(data.removeprefix("data: ")))


def gathered(events: list[Event]) -> dict[str, Any]:
    """The message to which the events come, as clients put it together."""
    message: dict[str, Any] = dict(events[0].data["message"])
    inputs: dict[int, str] = {}
    for event in events[1:]:
        data = event.data
        if event.name == "content_block_start":
            message["content"] = [*message["content"], data["content_block"]]
        elif event.name == "content_block_delta":
            delta, block = data["delta"], message["content"][data["index"]]
            if delta["type"] == "input_json_delta":
                inputs[data["index"]] = inputs.get(data["index"], "") + delta["partial_json"]
            else:
                (name,) = set(delta) - {"type"}
                block[name] += delta[name]
        elif event.name == "message_delta":
            message |= data["delta"] | {"usage": data["usage"]}
        for name in ("token_ids", "logits_processors_trace"):
            message.update({name: [*message.get(name, []), *data[name]]} if name in data else {})
    for index, text in inputs.items():
        message["content"][index]["input"] = json.loads(text)
    return message
