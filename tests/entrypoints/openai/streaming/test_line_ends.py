"""An event is one line for every client, also for one that takes Unicode's line ends for ends of lines."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from support.chat import HELLO, MODEL
from support.forced import says
from support.server import ServerProcess

TEXT = "one\x85two\u2028three\u2029four\x0b\x0c\r\n"
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "Say"},
    "/v1/responses": {"input": "Go"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 64},
}


def gained(event: dict[str, Any]) -> str:
    """The text that an event adds."""
    found: Any = event.get("delta", event)
    if event.get("choices"):
        found = event["choices"][0].get("delta", event["choices"][0])
    return found if isinstance(found, str) else found.get("content") or found.get("text") or ""


@pytest.mark.parametrize("path", BODIES)
def test_every_event_is_read_line_by_line(path: str, scripted_server: ServerProcess) -> None:
    body = {"model": MODEL, **BODIES[path], "stream": True, **says(TEXT)}
    with httpx.stream("POST", f"{scripted_server.url}{path}", json=body, timeout=60.0) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: {")]
    events = [json.loads(line) for line in lines]
    assert "".join(gained(event) for event in events if event.get("type") != "response.output_text.done") == TEXT
