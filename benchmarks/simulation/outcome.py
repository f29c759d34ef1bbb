"""From what was played to its numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulation.fleet import Played
from simulation.replica import Gaps, Served


@dataclass(frozen=True)
class Percentiles:
    """Milliseconds: the mean, the median and what 99 of 100 stay below."""

    mean: float
    p50: float
    p99: float


@dataclass(frozen=True)
class Outcome:
    """Result of a fleet for a trace.

    Rates are per second, and for all simulated replicas together. utilization: the share of the time in which a replica
    computes; waiting: sequences without a slot at a replica, on average over its time; most_waiting: at one of them.
    cache_hits: the share of prompt tokens found in prefix caches.
    """

    replicas: int
    arrivals: int
    completed: int
    requests_per_s: float
    tokens_per_s: float
    ttft_ms: Percentiles
    itl_ms: Percentiles
    tpot_ms: Percentiles
    utilization: float
    waiting: float
    most_waiting: int
    preemptions: int
    cache_hits: float
    steps: int
    stretches: int


def outcome_of(played: Played, start: float = 0.0, end: float | None = None) -> Outcome:
    """The numbers of requests that arrived in `start` … `end` (all of them, without it), of whole replicas otherwise.

    Rates are over the time from `start` to the last end of such a request. Raises ValueError without any.
    """
    until = math.inf if end is None else end
    chosen = [each for each in played.served if start <= each.arrival.time < until]
    if not chosen:
        raise ValueError("served: no request has ended")
    wall = max(each.last for each in chosen) - min(each.arrival.time for each in chosen)
    replicas = played.replicas
    hits, queries = (sum(each.cache_hits[place] for each in replicas) for place in (0, 1))
    time = len(replicas) * played.ended
    return Outcome(
        replicas=len(replicas),
        arrivals=played.arrivals,
        completed=len(played.served),
        requests_per_s=len(chosen) / wall,
        tokens_per_s=sum(each.arrival.output_tokens for each in chosen) / wall,
        ttft_ms=percentiles([each.ttft for each in chosen]),
        itl_ms=_of_gaps([each.gaps for each in replicas]),
        tpot_ms=percentiles(_tpots(chosen)),
        utilization=sum(each.busy for each in replicas) / time,
        waiting=sum(each.waiting_seconds for each in replicas) / time,
        most_waiting=max(each.most_waiting for each in replicas),
        preemptions=sum(each.num_preemptions for each in replicas),
        cache_hits=hits / max(queries, 1),
        steps=sum(each.steps for each in replicas),
        stretches=sum(each.stretches for each in replicas),
    )


def percentiles(seconds: Sequence[float]) -> Percentiles:
    """In milliseconds; all 0 for no values."""
    if not len(seconds):
        return Percentiles(0.0, 0.0, 0.0)
    values = 1000 * np.asarray(seconds)
    p50, p99 = np.percentile(values, (50, 99)).tolist()
    return Percentiles(float(values.mean()), p50, p99)


def _tpots(served: Sequence[Served]) -> list[float]:
    return [tpot for each in served if (tpot := each.tpot) is not None]


def _of_gaps(all_gaps: Sequence[Gaps]) -> Percentiles:
    counts: dict[int, int] = {}
    for gaps in all_gaps:
        for key, count in gaps.counts.items():
            counts[key] = counts.get(key, 0) + count
    if not counts:
        return Percentiles(0.0, 0.0, 0.0)
    keys = sorted(counts)
    values = 1000 * np.exp(np.array(keys) / 100)
    weights = np.array([counts[key] for key in keys], dtype=np.float64)
    upto = np.cumsum(weights) / weights.sum()
    p50, p99 = (float(values[min(int(np.searchsorted(upto, q)), len(keys) - 1)]) for q in (0.5, 0.99))
    return Percentiles(float((values * weights).sum() / weights.sum()), p50, p99)
