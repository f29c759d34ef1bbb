"""Many replicas behind one router: events in order of time."""

from __future__ import annotations

import gc
import heapq
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from simulation.costs import Costs
from simulation.replica import Replica, ReplicaConfig, Served
from simulation.routing import Policy
from simulation.trace import Arrival


@dataclass
class Played:
    """A trace, and what became of it: every request of the simulated replicas, in order of their ends."""

    replicas: list[Replica]
    served: list[Served] = field(default_factory=list)
    arrivals: int = 0
    ended: float = 0.0


class Fleet:
    """`replicas` of one configuration; of these the first `sample` are simulated (all, without it).

    A sample represents the whole only if the policy assigns requests to replicas independently of each other.
    """

    def __init__(
        self,
        replicas: int,
        policy: Policy,
        config: ReplicaConfig,
        costs: Costs,
        *,
        sample: int | None = None,
        skip_ahead: bool = True,
    ) -> None:
        if replicas < 1 or not 1 <= (sample or replicas) <= replicas:
            raise ValueError("sample: must be 1 … replicas, of which there is at least one")
        self._policy = policy
        self.replicas = [Replica(config, costs, index, skip_ahead=skip_ahead) for index in range(sample or replicas)]
        # Time, replica, and either what it gets or None where its stretch ends, if it still ends then.
        self._events: list[tuple[float, int, int, Arrival | None]] = []
        self._number = 0

    def play(self, trace: Iterable[Arrival], until: float | None = None) -> Played:
        """Serves all of the trace; with `until`, stop then with what is in flight."""
        played = Played(self.replicas)
        with _no_collection():
            for arrival in trace:
                self._run_to(arrival.time, played)
                replica = self._policy.choose(arrival)
                if replica < len(self.replicas):
                    played.arrivals += 1
                    self._push(arrival.time + self.replicas[replica].delay, replica, arrival)
            self._run_to(float("inf") if until is None else until, played)
        return played

    def _push(self, time: float, replica: int, arrival: Arrival | None) -> None:
        # The number keeps events of one moment in the order in which they were made.
        self._number += 1
        heapq.heappush(self._events, (time, self._number, replica, arrival))

    def _run_to(self, time: float, played: Played) -> None:
        while self._events and self._events[0][0] <= time:
            now, _, index, arrival = heapq.heappop(self._events)
            replica = self.replicas[index]
            before = replica.ends
            if arrival is not None:
                replica.take(arrival, now)
            elif before == now:
                ended = replica.finish()
                played.served += ended
                for _ in ended:
                    self._policy.ended(index)
                before, played.ended = None, max(played.ended, now)
            if replica.ends is not None and replica.ends != before:
                self._push(replica.ends, index, None)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Nothing here has cycles, and looking for them takes longer the more requests there are."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
