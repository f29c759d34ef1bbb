"""Measurements of each contender, and their ratios to its peers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from peers.contender import Contender, without_folders


@dataclass(frozen=True)
class LevelResult:
    """One level of one run: medians of its requests, throughput of the whole level.

    ttft_ms and tpot_ms are None where no request gave a value. The shares are of one core: the load generator's, and
    what neither it nor the server used. problem is what went wrong, None for nothing.
    """

    concurrency: int
    tokens_per_s: float
    ttft_ms: float | None
    tpot_ms: float | None
    client_cpu_share: float
    other_cpu_share: float
    problem: str | None

    @classmethod
    def of(cls, level: dict[str, Any], other_cpu_share: float) -> LevelResult:
        """From a level of `serving.py`'s report."""
        problem = without_folders(f"{level['errors']} failed: {level['first_error']}") if level["errors"] else None
        if problem is None and level["short_outputs"]:
            problem = f"{level['short_outputs']} outputs were too short"
        ttft, tpot = level["ttft_ms"] or {}, level["tpot_ms"] or {}
        throughput, share = level["output_tokens_per_s"], level["client_cpu_share"]
        times = ttft.get("p50"), tpot.get("p50")
        return cls(level["concurrency"], throughput, *times, share, other_cpu_share, problem)


@dataclass(frozen=True)
class PrefillResult:
    """Long prompts in one run, one at a time with one output token each: tokens of a prompt over its median time."""

    prompt_tokens: float
    tokens_per_s: float
    other_cpu_share: float
    problem: str | None

    @classmethod
    def of(cls, level: dict[str, Any], other_cpu_share: float) -> PrefillResult:
        """From a level of `serving.py`'s report; tokens from a prefix cache do not count."""
        if level["errors"]:
            return cls(0.0, 0.0, other_cpu_share, without_folders(f"{level['errors']} failed: {level['first_error']}"))
        computed = (level["prompt_tokens"] - level["cached_prompt_tokens"]) / level["completed"]
        return cls(computed, 1000 * computed / level["latency_ms"]["p50"], other_cpu_share, None)


@dataclass
class Run:
    """One start of one server; `biased` is the same load with a logit bias in every request."""

    plain: list[LevelResult] = field(default_factory=list)
    biased: list[LevelResult] = field(default_factory=list)
    prefill: PrefillResult | None = None


@dataclass
class Outcome:
    """All runs of one contender; `error` says why there are fewer than asked for.

    instructions: the instruction sets that it computed with, "" where they are not known.
    """

    contender: Contender
    runs: list[Run] = field(default_factory=list)
    error: str | None = None
    instructions: str = ""

    def levels(self, concurrency: int, *, biased: bool = False) -> list[LevelResult]:
        """The results at a level, one a run."""
        found = [result for run in self.runs for result in (run.biased if biased else run.plain)]
        return [result for result in found if result.concurrency == concurrency]

    def tokens_per_s(self, concurrency: int, *, biased: bool = False) -> float | None:
        """Median throughput of the runs without a problem; None where there is none."""
        levels = self.levels(concurrency, biased=biased)
        return median([x.tokens_per_s for x in levels if x.problem is None])

    def spread(self, concurrency: int) -> tuple[float, float] | None:
        """The lowest and the highest throughput of the runs."""
        good = [x.tokens_per_s for x in self.levels(concurrency) if x.problem is None]
        return (min(good), max(good)) if good else None

    def ttft_ms(self, concurrency: int) -> float | None:
        """Median over the runs of the median time to first token."""
        return median([x.ttft_ms for x in self.levels(concurrency) if x.problem is None])

    def tpot_ms(self, concurrency: int) -> float | None:
        """Median over the runs of the median time per output token."""
        return median([x.tpot_ms for x in self.levels(concurrency) if x.problem is None])

    @property
    def prefills(self) -> list[PrefillResult]:
        """The long prompts, one result a run."""
        return [run.prefill for run in self.runs if run.prefill is not None]

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """Median over the runs of the rate of long prompts."""
        return median([x.tokens_per_s for x in self.prefills if x.problem is None])

    def bias_ratio(self, concurrency: int) -> float | None:
        """Throughput with a bias over that without, the median of the ratios of single runs."""
        ratios = []
        for run in self.runs:
            plain, biased = (
                [x for x in results if x.concurrency == concurrency and x.problem is None]
                for results in (run.plain, run.biased)
            )
            ratios += [b.tokens_per_s / p.tokens_per_s for p, b in zip(plain, biased, strict=False)]
        return median(ratios)

    @property
    def problem(self) -> str | None:
        """The first thing that went wrong."""
        results = (result.problem for run in self.runs for result in (*run.plain, *run.biased))
        problems = [*results, *(x.problem for x in self.prefills)]
        return self.error or next((problem for problem in problems if problem), None)


@dataclass(frozen=True)
class Ratio:
    """Our value over the best peer's."""

    value: float
    peer: str


def throughput_ratio(
    ours: Outcome, peers: Sequence[Outcome], concurrency: int, *, same_precision: bool
) -> Ratio | None:
    """Our throughput over the best peer's at a level; None where either is missing."""
    candidates = [x for x in peers if not same_precision or x.contender.arithmetic == ours.contender.arithmetic]
    rates = [(x.tokens_per_s(concurrency), x) for x in candidates]
    return _rate_ratio(ours.tokens_per_s(concurrency), rates)


def prefill_ratio(ours: Outcome, peers: Sequence[Outcome]) -> Ratio | None:
    """Our rate of long prompts over the best peer's; None where either is missing."""
    return _rate_ratio(ours.prefill_tokens_per_s, [(x.prefill_tokens_per_s, x) for x in peers])


def ttft_ratio(ours: Outcome, peers: Sequence[Outcome], concurrency: int) -> Ratio | None:
    """Our time to first token over the shortest of the peers'; below 1 is better."""
    known = [(value, x) for x in peers if (value := x.ttft_ms(concurrency)) is not None]
    mine = ours.ttft_ms(concurrency)
    if mine is None or not known:
        return None
    best, peer = min(known, key=lambda pair: pair[0])
    return Ratio(mine / best, peer.contender.name)


def _rate_ratio(mine: float | None, rates: Sequence[tuple[float | None, Outcome]]) -> Ratio | None:
    known = [(rate, x) for rate, x in rates if rate is not None]
    if mine is None or not known:
        return None
    best, peer = max(known, key=lambda pair: pair[0])
    return Ratio(mine / best, peer.contender.name)


def median(values: Sequence[float | None]) -> float | None:
    """The median of what is known."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
