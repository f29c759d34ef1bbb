"""The choice of a replica for a request on Ray Serve: least loaded, with a preference for a cached prompt."""

from __future__ import annotations

import json
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from fastdeploy_lp.engine.client.routing import GivenPrefixes, chain_of, cost_of

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


DEFAULT_SLOTS = 32
DEFAULT_CAPACITY = 100_000


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """The rule of `engine/client/routing.py` for a changing set of replicas; each ingress process has its own router.

    slots: requests that a replica runs concurrently. capacity: blocks to remember per replica.
    """

    def initialize_state(self, slots: int = DEFAULT_SLOTS, capacity: int = DEFAULT_CAPACITY) -> None:
        """Sets the options; Ray Serve calls it after the constructor."""
        self._slots = slots
        self._capacity = capacity
        self._given: dict[Any, GivenPrefixes] = {}
        self._turns: dict[Any, int] = {}

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Returns the candidates from best to worst, each in a separate rank."""
        chain = _chain(pending_request)
        if pending_request is not None:
            # If all replicas refuse, the next attempt waits.
            pending_request.routing_context.should_backoff = True

        def cost(replica: RunningReplica) -> tuple[bool, float, int]:
            name = replica.replica_id
            load = self.replica_queue_len_cache.get(name) or 0
            known = self._given[name].known_share(chain) if name in self._given else 0.0
            return (*cost_of(load, known, self._slots), self._turns.get(name, 0))

        return [[each] for each in sorted(candidate_replicas, key=cost)]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, *_: Any) -> None:
        """Records that a replica accepted a request and will cache its prompt."""
        given = self._given.setdefault(replica_id, GivenPrefixes(BLOCK_CHARACTERS, self._capacity))
        given.add(_chain(pending_request))
        self._turns[replica_id] = max(self._turns.values(), default=0) + 1

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Updates the replicas and discards the state of removed ones."""
        super().update_replicas(replicas)
        present = {each.replica_id for each in replicas}
        for table in (self._given, self._turns):
            for name in [name for name in table if name not in present]:
                del table[name]


def _chain(pending_request: PendingRequest | None) -> Sequence[int]:
    arguments = [] if pending_request is None else pending_request.args
    return next((each.chain for each in arguments if isinstance(each, ForwardedRequest)), ())
