"""Ray Serve's choice of a replica for a request: least loaded, with a preference for who knows the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from fastdeploy_lp.engine.routing import GivenPrefixes, cost_of
from fastdeploy_lp.entrypoints.ray_serve.forwarded import BLOCK_CHARACTERS, ForwardedRequest

DEFAULT_SLOTS = 32
DEFAULT_CAPACITY = 100_000


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """The rule of `engine/routing.py` among replicas that come and go; one router in each process of the ingress.

    Its keywords are `slots`, requests that a replica runs at once, and `capacity`, blocks that are remembered of each.
    """

    def initialize_state(self, slots: int = DEFAULT_SLOTS, capacity: int = DEFAULT_CAPACITY) -> None:
        """Called by Ray Serve behind the constructor."""
        self._slots = slots
        self._capacity = capacity
        self._given: dict[Any, GivenPrefixes] = {}
        self._turns: dict[Any, int] = {}

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The candidates from the best to the worst, each in a rank of its own."""
        chain = _chain(pending_request)
        if pending_request is not None:
            # When all of them refuse, the next try is to wait a little.
            pending_request.routing_context.should_backoff = True

        def cost(replica: RunningReplica) -> tuple[bool, float, int]:
            name = replica.replica_id
            load = self.replica_queue_len_cache.get(name) or 0
            known = self._given[name].known_share(chain) if name in self._given else 0.0
            return (*cost_of(load, known, self._slots), self._turns.get(name, 0))

        return [[each] for each in sorted(candidate_replicas, key=cost)]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, *_: Any) -> None:
        """A replica has taken a request, and will know its prompt."""
        given = self._given.setdefault(replica_id, GivenPrefixes(BLOCK_CHARACTERS, self._capacity))
        given.add(_chain(pending_request))
        self._turns[replica_id] = max(self._turns.values(), default=0) + 1

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """What is known of replicas that are gone is forgotten."""
        super().update_replicas(replicas)
        present = {each.replica_id for each in replicas}
        for table in (self._given, self._turns):
            for name in [name for name in table if name not in present]:
                del table[name]


def _chain(pending_request: PendingRequest | None) -> Sequence[int]:
    arguments = [] if pending_request is None else pending_request.args
    return next((each.chain for each in arguments if isinstance(each, ForwardedRequest)), ())
