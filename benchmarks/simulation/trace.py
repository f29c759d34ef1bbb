"""Arrivals of requests: drawn from shapes that published traces have, or recorded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

ARRIVALS = ("poisson", "gamma", "modulated")
DRAWN_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: its number, arrival time, tokens of prompt and output.

    Requests with the same `prefix`, and no others, share the first `prefix_tokens` of the prompt.
    """

    number: int
    time: float
    prompt_tokens: int
    output_tokens: int
    prefix: int = 0
    prefix_tokens: int = 0

    def prompt(self) -> list[int]:
        """Token ids: two prompts have exactly their shared prefix in common."""
        own = self.prompt_tokens - self.prefix_tokens
        # Negative numbers identify prefixes, so that no request uses them for other tokens.
        return [-1 - self.prefix] * self.prefix_tokens + [self.number] * own


@dataclass(frozen=True)
class Lengths:
    """Log-normal numbers of tokens: their mean before they are cut to 1 … `most`, and sigma of their logarithm."""

    mean: float
    sigma: float
    most: int

    def draw(self, random: np.random.Generator, count: int) -> NDArray[np.int64]:
        """That many lengths."""
        mu = math.log(self.mean) - self.sigma**2 / 2
        return np.clip(np.rint(random.lognormal(mu, self.sigma, count)), 1, self.most).astype(np.int64)


@dataclass(frozen=True)
class Prefixes:
    """System prompts: so many of so many tokens, chosen by Zipf's law, before a share of the prompts."""

    count: int = 1
    tokens: int = 0
    share: float = 0.0
    exponent: float = 1.0

    def draw(self, random: np.random.Generator, count: int) -> NDArray[np.int64]:
        """The number of the prefix for each of that many prompts, -1 for none."""
        weights = np.arange(1, self.count + 1, dtype=np.float64) ** -self.exponent
        chosen = random.choice(self.count, count, p=weights / weights.sum())
        return np.where(random.random(count) < self.share, chosen, -1)


@dataclass(frozen=True)
class TraceShape:
    """Arrivals and lengths of requests.

    rate: requests a second. arrivals: "poisson"; "gamma", whose gaps vary by `variation` (standard deviation over
    mean); or "modulated", a Poisson process whose rate is `variation` times the low one during bursts. Bursts and the
    calm between them last `dwell` seconds on average.
    """

    rate: float
    prompt: Lengths = field(default_factory=lambda: Lengths(161.0, 1.0, 1024))
    output: Lengths = field(default_factory=lambda: Lengths(338.0, 0.8, 768))
    prefixes: Prefixes = field(default_factory=Prefixes)
    arrivals: str = "poisson"
    variation: float = 3.0
    dwell: float = 30.0

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise ValueError("rate: must be above 0")
        if self.arrivals not in ARRIVALS:
            raise ValueError(f"arrivals: {self.arrivals!r} is none of {', '.join(ARRIVALS)}")

    def requests(self, seconds: float, seed: int) -> Iterator[Arrival]:
        """The requests of so many seconds, in order of time; the same ones for the same seed."""
        random = np.random.default_rng(seed)
        number = 0
        for times in self._times(random, seconds):
            count = len(times)
            prompts, outputs = self.prompt.draw(random, count), self.output.draw(random, count)
            prefixes = self.prefixes.draw(random, count)
            for time, prompt, output, prefix in zip(
                times.tolist(), prompts.tolist(), outputs.tolist(), prefixes.tolist(), strict=True
            ):
                shared = self.prefixes.tokens if prefix >= 0 else 0
                yield Arrival(number, time, prompt + shared, output, max(prefix, 0), shared)
                number += 1

    def _times(self, random: np.random.Generator, seconds: float) -> Iterator[NDArray[np.float64]]:
        if self.arrivals == "modulated":
            yield from self._modulated(random, seconds)
            return
        shape = 1.0 if self.arrivals == "poisson" else self.variation**-2
        now = 0.0
        while now < seconds:
            times = now + np.cumsum(random.gamma(shape, 1 / (self.rate * shape), DRAWN_AT_ONCE))
            now = float(times[-1])
            yield times[times < seconds]

    def _modulated(self, random: np.random.Generator, seconds: float) -> Iterator[NDArray[np.float64]]:
        low = 2 * self.rate / (1 + self.variation)
        now, burst = 0.0, bool(random.integers(2))
        while now < seconds:
            end = min(now + random.exponential(self.dwell), seconds)
            count = random.poisson((end - now) * low * (self.variation if burst else 1.0))
            yield np.sort(random.uniform(now, end, count))
            now, burst = end, not burst


def write_trace(path: Path, trace: list[Arrival]) -> None:
    """As JSON."""
    path.write_bytes(msgspec.json.encode(trace) + b"\n")


def read_trace(path: Path) -> list[Arrival]:
    """Reads a file of `write_trace`; raises ValueError for anything else."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Arrival])
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path.name}: {error}") from error
