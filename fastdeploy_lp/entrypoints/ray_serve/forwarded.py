"""A request forwarded from the ingress to a replica, with names of its prompt's blocks for the router."""

from __future__ import annotations

import json
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastdeploy_lp.engine.routing import chain_of

# Approximately the number of tokens in a block of the KV cache.
BLOCK_CHARACTERS = 64
# Keys of the ASGI scope to forward.
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
    """scope: ASGI scope without connection state. body: complete body. chain: names of the prompt's blocks."""

    scope: dict[str, Any]
    body: bytes
    chain: Sequence[int] = ()


def forwarded(scope: MutableMapping[str, Any], body: bytes) -> ForwardedRequest:
    """Returns the request to send to a replica."""
    kept = {key: scope[key] for key in SCOPE_KEYS if key in scope}
    return ForwardedRequest(kept | {"asgi": {"version": "3.0"}}, body, tuple(prompt_chain(body)))


def prompt_chain(body: bytes) -> list[int]:
    """Returns a name for each block of the prompt in a body; empty without a prompt or for an invalid body.

    The replica reports errors in the body to the client. Names are valid in this process only.
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
