"""The sections of the page: a model each, with its load and the ratios that it must reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peers.machine import Machine
from peers.outcome import Outcome, Ratio, prefill_ratio, throughput_ratio, ttft_ratio


@dataclass(frozen=True)
class Bound:
    """A ratio to the best peer that one of our configurations must reach.

    quantity: "tokens/s", "TTFT p50" or "prompt tokens/s"; of TTFT the ratio must be at most `value`, of the others at
    least. label: our contender's. same_precision: only peers of its precision count. with_amx: counts only on
    machines with AMX, and is shown on all.
    """

    label: str
    quantity: str
    value: float
    concurrency: int = 1
    same_precision: bool = False
    with_amx: bool = False

    def __str__(self) -> str:
        peers = "best peer of this precision" if self.same_precision else "best peer of any"
        at = "" if self.quantity == "prompt tokens/s" else f" at {self.concurrency}"
        return f"{self.label}: {self.quantity}{at}, {peers}"

    @property
    def needed(self) -> str:
        """The bound in words."""
        return f"{'≤' if self.quantity == 'TTFT p50' else '≥'} {self.value:g}"

    def ratio(self, ours: Outcome, peers: Sequence[Outcome]) -> Ratio | None:
        """The measured ratio; None where either side has no result."""
        if self.quantity == "TTFT p50":
            return ttft_ratio(ours, peers, self.concurrency)
        if self.quantity == "prompt tokens/s":
            return prefill_ratio(ours, peers)
        return throughput_ratio(ours, peers, self.concurrency, same_precision=self.same_precision)

    def holds(self, ratio: Ratio | None) -> bool:
        """Returns True if a ratio reaches the bound; a missing one does not."""
        if ratio is None:
            return False
        return ratio.value <= self.value if self.quantity == "TTFT p50" else ratio.value >= self.value


@dataclass(frozen=True)
class Verdict:
    """A bound with the ratio of a run; `counts` is False for a bound of other machines."""

    bound: Bound
    ratio: Ratio | None
    counts: bool

    @property
    def holds(self) -> bool:
        """True if the ratio reaches the bound."""
        return self.bound.holds(self.ratio)

    @property
    def missed(self) -> bool:
        """True if it makes the run fail."""
        return self.counts and not self.holds

    def __str__(self) -> str:
        verdict = "met" if self.holds else "missed"
        return verdict if self.counts else f"{verdict}, but counts with AMX only"


@dataclass(frozen=True)
class Section:
    """One model's part of the page.

    suffix: of the names of its files. title: its heading, "" for the first part. max_tokens, prompt_tokens: lengths
    of outputs, and of the prompts of the prefill.
    """

    suffix: str
    title: str
    max_tokens: int
    prompt_tokens: int
    bounds: tuple[Bound, ...]

    def verdicts(
        self, machine: Machine, outcomes: Sequence[Outcome], concurrencies: Sequence[int], *, prefill: bool
    ) -> list[Verdict]:
        """Returns verdicts on the bounds of this run's contenders and levels; none without peers."""
        ours = {x.contender.label: x for x in outcomes if x.contender.ours}
        peers = [x for x in outcomes if not x.contender.ours]
        amx = "amx_int8" in machine.instructions
        return [
            Verdict(bound, bound.ratio(ours[bound.label], peers), amx or not bound.with_amx)
            for bound in self.bounds
            if peers
            and bound.label in ours
            and (prefill if bound.quantity == "prompt tokens/s" else bound.concurrency in concurrencies)
        ]


def _throughputs(label: str, values: dict[int, float], *, with_amx: bool) -> tuple[Bound, ...]:
    return tuple(Bound(label, "tokens/s", value, at, with_amx=with_amx) for at, value in values.items())


def _first_tokens(label: str, most: float) -> tuple[Bound, ...]:
    return tuple(Bound(label, "TTFT p50", most, at) for at in (1, 8, 32))


DEFAULT_MODEL = Section(
    suffix="",
    title="",
    max_tokens=128,
    prompt_tokens=1900,
    bounds=(
        *_throughputs("w8a8", {1: 1.8, 8: 2.5, 32: 2.5}, with_amx=True),
        *_first_tokens("w8a8", 0.6),
        Bound("float32", "tokens/s", 2.0, 32, same_precision=True),
        Bound("w8a8", "prompt tokens/s", 1.5),
    ),
)
BILLION = Section(
    suffix="-billion",
    title="A billion parameters",
    max_tokens=64,
    prompt_tokens=640,
    bounds=(
        *_throughputs("w8a8 from Q4_K_M", {1: 1.5, 8: 2.0, 32: 2.0}, with_amx=False),
        *_first_tokens("w8a8 from Q4_K_M", 0.6),
        Bound("w8a8 from Q4_K_M", "prompt tokens/s", 1.5),
    ),
)
