"""A request on its way from the ingress to a replica, and what a router can tell of its prompt."""

from __future__ import annotations

import json
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastdeploy_lp.engine.routing import chain_of

# About as many characters as a block of the KV cache has tokens.
BLOCK_CHARACTERS = 64
# What an application may look at, and what travels.
SCOPE_KEYS = (
    "type",
    "http_version",
    "method",
    "scheme",
    "path",
    "raw_path",
    "query_string",
    "root_path",
    "headers",
    "client",
    "server",
)


@dataclass(frozen=True)
class ForwardedRequest:
    """scope: of ASGI, without what belongs to the connection. body: all of it. chain: names of the prompt's blocks."""

    scope: dict[str, Any]
    body: bytes
    chain: Sequence[int] = ()


def forwarded(scope: MutableMapping[str, Any], body: bytes) -> ForwardedRequest:
    """The request as a replica gets it."""
    kept = {key: scope[key] for key in SCOPE_KEYS if key in scope}
    return ForwardedRequest(kept | {"asgi": {"version": "3.0"}}, body, tuple(prompt_chain(body)))


def prompt_chain(body: bytes) -> list[int]:
    """A name for each block of the prompt in a body; empty for one that has none or is not to be read.

    A replica tells the client what is wrong with a body. Names are those of this process.
    """
    try:
        content = json.loads(body) if body else None
    except (ValueError, RecursionError):
        return []
    if not isinstance(content, dict):
        return []
    for field in ("messages", "prompt", "input"):
        prompt = content.get(field)
        if isinstance(prompt, str):
            return list(chain_of(prompt, BLOCK_CHARACTERS))
        if prompt is not None:
            return list(chain_of(json.dumps(prompt, ensure_ascii=False), BLOCK_CHARACTERS))
    return []
