"""What tests of the HTTP API share: request bodies, raw streams, metrics, and what tokens read as."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import httpx
from prometheus_client.parser import text_string_to_metric_families

from fastdeploy_lp.checkpoint import resolve_model
from fastdeploy_lp.engine.tokenizer import Tokenizer
from support.server import ServerProcess, wait_until

MODEL = "smollm2-135m"
REQUEST_SECONDS = 600.0
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 32}
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hello!"}]
# Far more than a test waits for: it ends because something ends it.
ENDLESS: dict[str, Any] = {"messages": HELLO, "max_tokens": 2000, "ignore_eos": True, "temperature": 0}

# A chat template that takes very long and needs no memory that grows.
SLOW_TEMPLATE = "{% set a = [1] * 4000000 %}{% for _ in range(99999) %}{% if 2 in a %}{% endif %}{% endfor %}"


def chat_url(server: ServerProcess) -> str:
    """Where chat completions are posted."""
    return f"{server.url}/v1/chat/completions"


def post(server: ServerProcess, body: Any) -> httpx.Response:
    """The answer to a body, which is sent as it is if it is bytes."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    return httpx.post(chat_url(server), content=content, headers=headers, timeout=REQUEST_SECONDS)


@contextmanager
def opened_stream(server: ServerProcess, body: dict[str, Any]) -> Iterator[Iterator[str]]:
    """The `data:` payloads of a streamed answer as they come; leaving closes the connection."""
    with httpx.stream("POST", chat_url(server), json={**body, "stream": True}, timeout=REQUEST_SECONDS) as response:
        if response.status_code != httpx.codes.OK:
            raise RuntimeError(response.read().decode())
        yield (line.removeprefix("data: ") for line in response.iter_lines() if line)


def chunks(payloads: Iterator[str]) -> list[dict[str, Any]]:
    """Parsed payloads up to [DONE], which has to be there and be the last one."""
    *parts, last = list(payloads)
    if last != "[DONE]":
        raise RuntimeError(f"the stream ended with {last!r}")
    return [json.loads(part) for part in parts]


def text_of(parts: list[dict[str, Any]], index: int = 0) -> str:
    """All content that a choice gained, joined."""
    choices = [choice for part in parts for choice in part["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content", "") for choice in choices)


def wait_for_text(payloads: Iterator[str]) -> None:
    """Read until a payload holds generated text."""
    for payload in payloads:
        if any(choice["delta"].get("content") for choice in json.loads(payload).get("choices", [])):
            return
    raise RuntimeError("the stream ended before it held any text")


def metric(server: ServerProcess, name: str, **labels: str) -> float:
    """A sample's value; 0 if it does not exist yet."""
    full_name = f"fastdeploy_lp:{name}"
    with urlopen(server.metrics_url) as response:
        lines = response.read().decode().splitlines()
    # Parsing all of them takes longer than the server takes to answer, and most conditions that tests wait for are one.
    own = "".join(f"{line}\n" for line in lines if line.startswith(full_name))
    samples = [sample for family in text_string_to_metric_families(own) for sample in family.samples]
    found = [s.value for s in samples if s.name == full_name and s.labels == labels]
    return found[0] if found else 0.0


def wait_for_running(server: ServerProcess, count: int, seconds: float = 30.0) -> None:
    """Wait until exactly so many sequences hold a slot."""
    wait_until(
        lambda: metric(server, "num_requests_running") == count,
        seconds,
        lambda: f"{metric(server, 'num_requests_running'):g} sequences run, not {count}",
    )


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer(Path(resolve_model(MODEL, show_progress=False).directory))


def decode(*token_ids: int) -> str:
    """What the default model's tokens read as."""
    return _tokenizer().decode(token_ids)


def encode(text: str) -> list[int]:
    """The default model's tokens of a text."""
    return _tokenizer().encode(text, add_special_tokens=False)
