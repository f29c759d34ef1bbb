"""Which replica gets a request."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from typing import Protocol

from simulation.trace import Arrival

# Maximum excess of a replica's load over the mean before requests with its prefix go to other replicas.
FULLER = 1.25
_GOLDEN = 0x9E3779B97F4A7C15


class Policy(Protocol):
    """Knows what it sent and what came back, as a router does; not what happens inside of replicas."""

    def choose(self, arrival: Arrival) -> int:
        """The replica that gets this request."""

    def ended(self, replica: int) -> None:
        """A request of that replica has ended."""


class Random:
    """Any replica, each as likely as the next."""

    def __init__(self, replicas: int, seed: int) -> None:
        self._replicas, self._random = replicas, random.Random(seed)

    def choose(self, arrival: Arrival) -> int:  # noqa: ARG002
        """As `Policy` says."""
        return self._random.randrange(self._replicas)

    def ended(self, replica: int) -> None:
        """Nothing to know."""


class RoundRobin:
    """One after the other."""

    def __init__(self, replicas: int, seed: int) -> None:  # noqa: ARG002
        self._replicas, self._next = replicas, 0

    def choose(self, arrival: Arrival) -> int:  # noqa: ARG002
        """As `Policy` says."""
        chosen, self._next = self._next, (self._next + 1) % self._replicas
        return chosen

    def ended(self, replica: int) -> None:
        """Nothing to know."""


class LeastLoaded:
    """The one with the fewest requests in flight; among equals any one."""

    def __init__(self, replicas: int, seed: int) -> None:
        self._random = random.Random(seed)
        self.loads = [0] * replicas
        self.total = 0
        self._heap = [(0, self._random.random(), replica) for replica in range(replicas)]
        heapq.heapify(self._heap)

    def choose(self, arrival: Arrival) -> int:  # noqa: ARG002
        """As `Policy` says."""
        # Entries of loads that have changed since stay in the heap until they come up.
        while self._heap[0][0] != self.loads[self._heap[0][2]]:
            heapq.heappop(self._heap)
        return self.sent(self._heap[0][2])

    def sent(self, replica: int) -> int:
        """Assigns a request to this replica; returns the replica."""
        self._change(replica, 1)
        return replica

    def ended(self, replica: int) -> None:
        """As `Policy` says."""
        self._change(replica, -1)

    def _change(self, replica: int, by: int) -> None:
        self.loads[replica] += by
        self.total += by
        heapq.heappush(self._heap, (self.loads[replica], self._random.random(), replica))


class PrefixAffine:
    """The replica that a hash of the prompt's beginning names, unless it is much fuller than the mean: then the next
    one that the hash names (consistent hashing with bounded loads). Requests without a shared beginning go to the least
    loaded."""

    def __init__(self, replicas: int, seed: int) -> None:
        self._balance = LeastLoaded(replicas, seed)
        self._seed = seed

    def choose(self, arrival: Arrival) -> int:
        """As `Policy` says."""
        balance = self._balance
        if not arrival.prefix_tokens:
            return balance.choose(arrival)
        count = len(balance.loads)
        bound = math.ceil(FULLER * (balance.total + 1) / count)
        # In the same order for every request with this prefix, so that what spills over spills to the same replicas.
        for probe in range(count):
            replica = _mixed(self._seed, arrival.prefix, probe) % count
            if balance.loads[replica] < bound:
                return balance.sent(replica)
        return balance.choose(arrival)

    def ended(self, replica: int) -> None:
        """As `Policy` says."""
        self._balance.ended(replica)


def _mixed(*numbers: int) -> int:
    """64 bits that look random and are the same in every run."""
    value = 0
    for number in numbers:
        value = ((value ^ number) * _GOLDEN + _GOLDEN) & (2**64 - 1)
        value ^= value >> 29
    return value


POLICIES: dict[str, Callable[[int, int], Policy]] = {
    "random": Random,
    "round robin": RoundRobin,
    "least loaded": LeastLoaded,
    "prefix affine": PrefixAffine,
}
# A replica's share of the arrivals does not depend on what the others do.
INDEPENDENT = ("random", "round robin")


def policy_of(name: str, replicas: int, seed: int) -> Policy:
    """A new one; raises ValueError for a name that there is not."""
    if name not in POLICIES:
        raise ValueError(f"policy: {name!r} is none of {', '.join(POLICIES)}")
    return POLICIES[name](replicas, seed)
