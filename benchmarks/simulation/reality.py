"""The simulator against a real server: the same requests at the same times."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from peers.contender import our_contender
from peers.server_process import ServerProcess

from fastdeploy_lp.entrypoints.bench.load import Sample
from simulation.calibration import FULL, START_SECONDS
from simulation.costs import Costs
from simulation.fleet import Fleet
from simulation.load import send_trace
from simulation.outcome import Percentiles, outcome_of, percentiles
from simulation.replica import ReplicaConfig
from simulation.routing import RoundRobin
from simulation.trace import Arrival, Lengths, Prefixes, TraceShape

# Shares of what the simulator says that a replica can do.
LOADS = {"low": 0.3, "near capacity": 0.85, "over capacity": 1.6}
# Outputs are short, so that a minute has enough requests for a percentile.
SHAPE = TraceShape(1.0, Lengths(120.0, 1.0, 1024), Lengths(100.0, 0.6, 400), Prefixes(8, 64, 0.5))
CAPACITY_REQUESTS = 600
# Requests of a load, however short it is.
FEWEST = 4
WITHIN = 0.15


@dataclass(frozen=True)
class Extent:
    """Loads for `seconds` together, after `warm_up` requests.

    turns: a machine may be slower for half a minute, so each load runs so many times, in turns, and the median counts.
    """

    seconds: float
    warm_up: int = 16
    turns: int = 3


QUICK = Extent(1.0, warm_up=2, turns=1)


@dataclass(frozen=True)
class Numbers:
    """Extent of the comparison."""

    tokens_per_s: float
    ttft_ms: Percentiles
    tpot_ms: Percentiles


@dataclass(frozen=True)
class Compared:
    """One run of a load: its name and rate, the trace as it was sent, what was measured and what is predicted."""

    load: str
    rate: float
    trace: list[Arrival]
    measured: Numbers
    predicted: Numbers

    def ratios(self) -> dict[str, float]:
        """Predicted over measured."""
        mine, theirs = self.predicted, self.measured
        return {
            "tokens_per_s": mine.tokens_per_s / theirs.tokens_per_s,
            "ttft_mean": mine.ttft_ms.mean / theirs.ttft_ms.mean,
            "ttft_p50": mine.ttft_ms.p50 / theirs.ttft_ms.p50,
            "ttft_p99": mine.ttft_ms.p99 / theirs.ttft_ms.p99,
            "tpot_mean": mine.tpot_ms.mean / theirs.tpot_ms.mean,
            "tpot_p50": mine.tpot_ms.p50 / theirs.tpot_ms.p50,
        }


def capacity(costs: Costs, config: ReplicaConfig, shape: TraceShape) -> float:
    """Requests of this shape that one replica ends in a second while it always has work for all of its slots."""
    trace = [replace(each, time=0.0) for each in _first(shape, CAPACITY_REQUESTS)]
    played = Fleet(1, RoundRobin(1, 0), config, costs).play(trace)
    # Slots fill up at first, and while the last ones drain they are empty.
    ends = sorted(each.last for each in played.served)
    first, last = len(ends) // 4, 3 * len(ends) // 4
    return (last - first) / (ends[last] - ends[first])


def predict(trace: Sequence[Arrival], costs: Costs, config: ReplicaConfig) -> Numbers:
    """Result of one replica for the trace."""
    outcome = outcome_of(Fleet(1, RoundRobin(1, 0), config, costs).play(trace))
    return Numbers(outcome.tokens_per_s, outcome.ttft_ms, outcome.tpot_ms)


def compare(costs: Costs, config: ReplicaConfig, extent: Extent) -> list[Compared]:
    """Runs the loads in turns on a server of the calibrated kind.

    A run ends with its last request.
    """
    most = capacity(costs, config, SHAPE)
    compared = []
    with ServerProcess(our_contender(costs.model, costs.quantization or FULL), START_SECONDS) as server:
        url = f"{server.url}/v1"
        asyncio.run(send_trace(url, [replace(each, time=0.0) for each in _first(SHAPE, extent.warm_up)], 0))
        for number, (load, share) in enumerate(list(LOADS.items()) * extent.turns):
            rate, length = share * most, extent.seconds / extent.turns
            drawn = replace(SHAPE, rate=rate).requests(length + 10 * FEWEST / rate, seed=number)
            trace = [each for each in drawn if each.time < length or each.number < FEWEST]
            sent, samples = asyncio.run(send_trace(url, trace, 1 + number))
            compared.append(Compared(load, rate, sent, measured_of(samples), predict(sent, costs, config)))
    return compared


def middle_ratios(compared: Sequence[Compared]) -> dict[str, dict[str, float]]:
    """Of each load, by name, the median of its runs' ratios."""
    runs: dict[str, list[dict[str, float]]] = {}
    for each in compared:
        runs.setdefault(each.load, []).append(each.ratios())
    return {
        load: {name: statistics.median(ratios[name] for ratios in found) for name in found[0]}
        for load, found in runs.items()
    }


def measured_of(samples: Sequence[Sample]) -> Numbers:
    """The numbers of a load that was sent; raises ValueError for none."""
    if not samples:
        raise ValueError("samples: must not be empty")
    wall = max(sample.ended for sample in samples) - min(sample.started for sample in samples)
    return Numbers(
        sum(sample.output_tokens for sample in samples) / wall,
        percentiles([ttft for sample in samples if (ttft := sample.ttft) is not None]),
        percentiles([tpot for sample in samples if (tpot := sample.tpot) is not None]),
    )


def show(compared: Sequence[Compared]) -> str:
    """A table in Markdown, measured and predicted with their ratio."""
    lines = [
        "| load | requests | | tokens/s | TTFT mean, ms | TTFT p50, ms | TTFT p99, ms | TPOT mean, ms | TPOT p50, ms |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for each in compared:
        head = f"| {each.load}, {each.rate:.1f}/s | {len(each.trace)} |"
        for name, numbers in (("measured", each.measured), ("predicted", each.predicted)):
            ttft, tpot = numbers.ttft_ms, numbers.tpot_ms
            values = (numbers.tokens_per_s, ttft.mean, ttft.p50, ttft.p99, tpot.mean, tpot.p50)
            lines.append(f"{head} {name} | " + " | ".join(f"{value:.4g}" for value in values) + " |")
            head = "| | |"
        lines.append("| | | ratio | " + " | ".join(f"{ratio:.2f}" for ratio in each.ratios().values()) + " |")
    for load, ratios in middle_ratios(compared).items():
        lines.append(
            f"| **{load}** | | median ratio | " + " | ".join(f"**{ratio:.2f}**" for ratio in ratios.values()) + " |"
        )
    return "\n".join(lines)


def holds(compared: Sequence[Compared]) -> bool:
    """True if throughput and the mean and median time to the first token are predicted closely enough."""
    names = ("tokens_per_s", "ttft_mean", "ttft_p50")
    return all(abs(ratios[name] - 1) <= WITHIN for ratios in middle_ratios(compared).values() for name in names)


def _first(shape: TraceShape, count: int) -> list[Arrival]:
    return list(replace(shape, rate=1000.0).requests(count / 200, seed=1))[:count]
