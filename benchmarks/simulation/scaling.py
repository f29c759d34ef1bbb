"""Throughput and latency by load, policy and number of replicas."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from simulation.costs import Costs
from simulation.fleet import Fleet
from simulation.outcome import Outcome, outcome_of
from simulation.plot import Curve, Plot, render
from simulation.reality import capacity
from simulation.replica import ReplicaConfig
from simulation.routing import INDEPENDENT, POLICIES, policy_of
from simulation.trace import ARRIVALS, Prefixes, TraceShape

# ShareGPT's mean lengths, and system prompts before most of the requests.
CHAT = TraceShape(1.0, prefixes=Prefixes(1000, 256, 0.7))
SEED = 1
PER_MINUTE = 1_000_000
# The error of a step that a quiet machine stays below.
QUIET = 0.1
PRELIMINARY = "> **Preliminary.** The machine was not quiet, or runs were short: measure again before using a number."


@dataclass(frozen=True)
class Sizes:
    """Extent of the simulation.

    shares: loads, as shares of the capacity. replicas: sizes of fleets. busy: the load at which fleets and policies
    are compared. requests: of the runs of one replica, so that all percentiles are of as many. seconds, hour: of the
    other runs, and of the longest ones, which have the largest fleet, of which `sample` replicas are simulated.
    """

    shares: tuple[float, ...]
    replicas: tuple[int, ...]
    busy: float
    fleet: int
    requests: int
    seconds: float
    hour: float
    largest: int
    sample: int


FULL_SIZES = Sizes((0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1), (1, 4, 16, 64), 0.85, 16, 2000, 200.0, 3600.0, 1000, 8)
SMOKE_SIZES = Sizes((0.3, 1.1), (1, 2), 0.85, 2, 10, 60.0, 60.0, 10, 2)


@dataclass(frozen=True)
class Run:
    """One simulated trace; rate: requests a second of the whole fleet; took: seconds that simulating it took."""

    arrivals: str
    policy: str
    replicas: int
    rate: float
    share: float
    seconds: float
    outcome: Outcome
    took: float


@dataclass(frozen=True)
class Scaling:
    """All runs, and what a replica can do of this load: requests and their tokens in a second."""

    costs: Costs
    capacity: float
    loads: list[Run]
    policies: list[Run]
    fleets: list[Run]
    longest: list[Run]


class Simulations:
    """Runs of one load on replicas of one cost."""

    def __init__(self, costs: Costs, config: ReplicaConfig, shape: TraceShape) -> None:
        self._costs, self._config, self._shape = costs, config, shape
        self.capacity = capacity(costs, config, shape)

    def run(
        self,
        replicas: int,
        share: float,
        seconds: float,
        *,
        policy: str = "least loaded",
        arrivals: str = "poisson",
        sample: int | None = None,
    ) -> Run:
        """A fleet under this share of its capacity; the first fifth of the time does not count.

        Raises ValueError for a sample with a policy whose replicas are not independent.
        """
        if sample is not None and policy not in INDEPENDENT:
            raise ValueError(f"sample: replicas behind {policy!r} are not independent")
        began = time.perf_counter()
        rate = share * self.capacity * replicas
        trace = replace(self._shape, rate=rate, arrivals=arrivals).requests(seconds, SEED)
        fleet = Fleet(replicas, policy_of(policy, replicas, SEED), self._config, self._costs, sample=sample)
        outcome = outcome_of(fleet.play(trace), start=seconds / 5)
        return Run(arrivals, policy, replicas, rate, share, seconds, outcome, time.perf_counter() - began)


def measure_scaling(costs: Costs, sizes: Sizes) -> Scaling:
    """Everything that `docs/scaling.md` shows."""
    do = Simulations(costs, ReplicaConfig(), CHAT)
    loads = [
        do.run(1, share, sizes.requests / (share * do.capacity), arrivals=name)
        for name in ARRIVALS
        for share in sizes.shares
    ]
    policies = [do.run(sizes.fleet, sizes.busy, sizes.seconds, policy=name) for name in POLICIES]
    fleets = [
        do.run(count, sizes.busy, sizes.seconds, policy=name)
        for name in ("random", "least loaded")
        for count in sizes.replicas
    ]
    longest = [do.run(sizes.largest, sizes.busy, sizes.hour, policy=name, sample=sizes.sample) for name in INDEPENDENT]
    return Scaling(costs, do.capacity, loads, policies, fleets, longest)


def write_scaling(scaling: Scaling, directory: Path) -> None:
    """The numbers as JSON, the plots, and the tables that the document has, which are also printed."""
    (directory / "scaling.json").write_bytes(msgspec.json.format(msgspec.json.encode(scaling)) + b"\n")
    for name, plot in plots(scaling).items():
        (directory / f"scaling-{name}.svg").write_text(render(plot))
    page = directory / "scaling.md"
    if page.exists():
        page.write_text(replaced(page.read_text(), tables(scaling)))
    print(tables(scaling))


def plots(scaling: Scaling) -> dict[str, Plot]:
    """By name: latency over load, and over the size of the fleet."""

    def curve(label: str, runs: Sequence[Run], x: str, value: str) -> Curve:
        points = [(float(getattr(run, x)), float(getattr(run.outcome.ttft_ms, value))) for run in runs]
        return Curve(label, points)

    loads = [
        curve(f"{name}, {value}", [run for run in scaling.loads if run.arrivals == name], "share", value)
        for name in ARRIVALS
        for value in ("p50", "p99")
    ]
    names = sorted({run.policy for run in scaling.fleets})
    fleets = [
        curve(f"{name}, {value}", [run for run in scaling.fleets if run.policy == name], "replicas", value)
        for name in names
        for value in ("p50", "p99")
    ]
    throughput = [
        Curve(name, [(run.share, run.outcome.tokens_per_s) for run in scaling.loads if run.arrivals == name])
        for name in ARRIVALS
    ]
    return {
        "ttft": Plot("TTFT in ms over load (1: capacity)", loads, log_y=True),
        "throughput": Plot("tokens/s of a replica over load (1: capacity)", throughput),
        "fleet": Plot("TTFT in ms over replicas, at the same load each", fleets, log_x=True, log_y=True),
    }


BEGIN, END = "<!-- tables: written by benchmarks/simulate.py -->", "<!-- end of tables -->"


def replaced(page: str, text: str) -> str:
    """The page with its tables renewed; raises ValueError for one without their place."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("scaling.md: has no place for the tables")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def tables(scaling: Scaling) -> str:
    """Costs, loads, policies, fleets, the longest runs, and the arithmetic of a large fleet."""
    costs = scaling.costs
    settled = costs.fit_error <= QUIET and all(run.seconds >= FULL_SIZES.seconds for run in scaling.policies)
    parts = [
        *([] if settled else [PRELIMINARY]),
        f"{costs.model}, {costs.quantization or 'float32'}, {costs.machine}, costs of {costs.timestamp} from "
        f"{costs.steps:,} steps, fitted with a median error of {costs.fit_error:.1%}. One replica ends "
        f"{scaling.capacity:.2f} requests/s of this load when its slots always have work.",
        _table("Load on one replica", scaling.loads, "arrivals"),
        _table("Policies", scaling.policies, "policy"),
        _table("Fleets", scaling.fleets, "policy"),
        _table("The longest runs, of which a sample of replicas is simulated", scaling.longest, "policy"),
        _arithmetic(scaling),
    ]
    return "\n\n".join(parts)


def _table(title: str, runs: Sequence[Run], name: str) -> str:
    lines = [
        f"**{title}**",
        "",
        f"| {name} | replicas | simulated | load | requests/s | tokens/s | TTFT p50 | TTFT p99 | ITL p50 | ITL p99 | "
        "busy | waiting | most waiting | preemptions | cache hits | simulated in, s |",
        "| --- |" + " ---: |" * 15,
    ]
    for run in runs:
        out = run.outcome
        values = [
            str(getattr(run, name)),
            f"{run.replicas:,}",
            str(out.replicas),
            f"{run.share:.0%}",
            f"{out.requests_per_s:.2f}",
            f"{out.tokens_per_s:,.0f}",
            *(f"{value:,.0f}" for value in (out.ttft_ms.p50, out.ttft_ms.p99)),
            *(f"{value:,.1f}" for value in (out.itl_ms.p50, out.itl_ms.p99)),
            f"{out.utilization:.0%}",
            f"{out.waiting:.2f}",
            str(out.most_waiting),
            str(out.preemptions),
            f"{out.cache_hits:.0%}",
            f"{run.took:.0f}",
        ]
        lines.append(f"| {' | '.join(values)} |")
    return "\n".join(lines)


def _arithmetic(scaling: Scaling) -> str:
    """Replicas for a million requests a minute: as measured, and for a machine that is so many times as fast."""
    rate = PER_MINUTE / 60
    shares = [run.share for run in scaling.fleets]
    lines = [
        f"**{PER_MINUTE:,} requests a minute** ({rate:,.0f}/s) at {shares[0]:.0%} of capacity",
        "",
        "| a replica against the measured one | replicas |",
        "| --- | ---: |",
    ]
    for times in (1, 10, 100, 1000):
        label = "as measured" if times == 1 else f"{times} times as fast (a parameter, not measured)"
        lines.append(f"| {label} | {rate / (scaling.capacity * times * shares[0]):,.0f} |")
    return "\n".join(lines)
