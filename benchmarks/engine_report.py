"""Measurements of the engine's benchmark in one precision, and their tables."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

FULL = "float32"
BFLOAT16 = "bfloat16"


def precision_options(precision: str | None) -> dict[str, str]:
    """Returns the engine's options for a precision of these benchmarks: a `--quantization`, BFLOAT16, or FULL."""
    if precision in (None, FULL):
        return {}
    return {"dtype": precision} if precision == BFLOAT16 else {"quantization": precision}


PARTS = ("forward", "logits", "chain", "sampler")
HOST = "host"
BANDWIDTH, ATTENTION = "bandwidth", "attention products"


@dataclass(frozen=True)
class Sizes:
    """Extent of the measurement: prompt lengths, batches (rows) and contexts of the decode steps, and repetitions.

    A turn is `per_turn` steps and as many calls of each floor; `rounds` repeat a prompt, and compare a batch with and
    without logits processors. stream_bytes: size of the buffer that measures the memory's bandwidth; None for one that
    no cache of this machine holds. counts: False if only what runs matters, not how fast.
    """

    prompts: list[int]
    batches: list[int]
    contexts: list[int]
    turns: int
    per_turn: int = 3
    rounds: int = 5
    stream_bytes: int | None = None
    counts: bool = True


@dataclass(frozen=True)
class Job:
    """One precision's run: `quantization` is None for float32, BFLOAT16 for `--dtype bfloat16`.

    harnesses: a directory in which the first run compiles the harnesses and later ones find them.
    onednn_include: oneDNN's headers, None to do without oneDNN.
    """

    model: str
    quantization: str | None
    sizes: Sizes
    processors: bool
    guided: bool
    harnesses: str
    onednn_include: str | None


@dataclass(frozen=True)
class Prefill:
    """One prompt alone in the engine, from its arrival to its first token."""

    prompt_tokens: int
    tokens_per_s: float
    best_tokens_per_s: float


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one thing, by turn: the median of each turn, and the least of all."""

    turns: list[float]
    best: float

    @property
    def median(self) -> float:
        """The middle turn."""
        return statistics.median(self.turns)

    def ratio_to(self, other: Timing) -> float:
        """Ratio of this to `other`, turn by turn, so that noise affects both equally."""
        return statistics.median(mine / theirs for mine, theirs in zip(self.turns, other.turns, strict=True))

    def and_then(self, other: Timing) -> Timing:
        """Both, one after the other."""
        both = [mine + theirs for mine, theirs in zip(self.turns, other.turns, strict=True)]
        return Timing(both, self.best + other.best)


@dataclass(frozen=True)
class Decode:
    """Decode steps of `batch` rows.

    context: mean number of tokens that a row attends to, over the steps measured.
    step: `EngineCore.step` and the encoding of its message. passes: forward and logits of the same rows alone.
    parts_ms: medians of forward, logits, chain and sampler, timed where they run in the step, and of host, the rest of
    each step: scheduling, bookkeeping, messages.
    floors: "bandwidth", "our products", "oneDNN products", "attention products": what a step has to do in any case,
    alone. The products are those with weights; attention's are float32 in every precision.
    bytes_read: weights, keys and values that a step has to read, which is what "bandwidth" reads; 0 without floors.
    """

    batch: int
    context: float
    step: Timing
    passes: Timing
    parts_ms: dict[str, float]
    floors: dict[str, Timing] = field(default_factory=dict)
    bytes_read: int = 0

    def shares(self) -> dict[str, float]:
        """The parts of a step as fractions of it; products and the rest of the passes apart if they are known."""
        named = dict(self.parts_ms)
        passes = named.pop("forward") + named.pop("logits")
        products = self.floors.get("our products")
        if products is None:
            split = {"passes": passes}
        else:
            split = {"products": products.median, "attention etc.": passes - products.median}
        return {name: ms / self.step.median for name, ms in {**split, **named}.items()}

    def fastest_products(self) -> str | None:
        """The name of the faster products with weights; None without floors."""
        products = [name for name in self.floors if name not in (BANDWIDTH, ATTENTION)]
        return min(products, key=lambda name: self.floors[name].median, default=None)

    def floor(self) -> str | None:
        """The name of the floor: the larger of the bandwidth's time and that of the fastest products."""
        fastest = self.fastest_products()
        return None if fastest is None else max((BANDWIDTH, fastest), key=lambda name: self.floors[name].median)

    def all_products(self) -> Timing | None:
        """The fastest products with weights, and attention's; None where one of them was not measured."""
        fastest = self.fastest_products()
        if fastest is None or ATTENTION not in self.floors:
            return None
        return self.floors[fastest].and_then(self.floors[ATTENTION])


@dataclass(frozen=True)
class Memory:
    """Bytes: peak of the process after loading and after prompts and the largest batch, weights, cache."""

    peak_rss_loaded: int
    peak_rss: int
    weights_read_by_a_step: int | None
    kv_cache_per_token: int


@dataclass(frozen=True)
class Processors:
    """LogitBias with 8 entries in every row: steps without and with it, in turns, and what the chain took of them."""

    batch: int
    off: Timing
    on: Timing
    chain_ms: float

    @property
    def cost_percent(self) -> float:
        """Cost of the processor in a step."""
        return 100 * (self.on.ratio_to(self.off) - 1)


@dataclass(frozen=True)
class Guided:
    """JSON of one schema in every row: steps without and with it, in turns, and what the mask took of them.

    mask_ms: what a step does for it on its own way: waiting for the masks, applying them twice, following the tokens.
    """

    batch: int
    off: Timing
    on: Timing
    mask_ms: float

    @property
    def cost_percent(self) -> float:
        """Cost of guided decoding in a step."""
        return 100 * (self.on.ratio_to(self.off) - 1)


@dataclass(frozen=True)
class Measured:
    """Everything about one precision; `skipped` says what was left out and why."""

    precision: str
    threads: int
    prefill: list[Prefill]
    decode: list[Decode]
    memory: Memory
    device_reads_per_step: int
    processors: Processors | None = None
    guided: Guided | None = None
    skipped: list[str] = field(default_factory=list)
    instructions: str | None = None  # of products of 8 bits; None without compiled operators

    @property
    def bandwidth_gb_per_s(self) -> float | None:
        """The best that all threads read from memory; None without floors."""
        rates = [row.bytes_read / row.floors[BANDWIDTH].best for row in self.decode if BANDWIDTH in row.floors]
        return max(rates) / 1e6 if rates else None


def show(measured: Measured) -> None:
    """Prints one precision's tables."""
    print(f"\n{measured.precision}, {measured.threads} threads")
    if measured.instructions is not None:
        print(f"  products of 8 bits: {measured.instructions}")
    _show_prefill(measured.prefill)
    _show_decode(measured.decode)
    _show_floors(measured)
    _show_memory(measured)
    if measured.processors is not None:
        _show_processors(measured.processors)
    if measured.guided is not None:
        _show_guided(measured.guided)
    for line in measured.skipped:
        print(f"  left out: {line}")


def _show_prefill(rows: list[Prefill]) -> None:
    print("\n  prefill: prompt tokens       tokens/s           best")
    for row in rows:
        print(f"  {row.prompt_tokens:>22}{row.tokens_per_s:>15.0f}{row.best_tokens_per_s:>15.0f}")


def _show_decode(rows: list[Decode]) -> None:
    for number, row in enumerate(rows):
        shares = row.shares()
        if number == 0:
            print(f"\n  decode: rows   context   step ms   tok/s  alone ms{''.join(f'{name:>16}' for name in shares)}")
        cells = "".join(f"{100 * share:>14.1f} %" for share in shares.values())
        step = row.step.median
        print(
            f"  {row.batch:>12}{row.context:>10.0f}{step:>10.2f}{1000 * row.batch / step:>8.0f}"
            f"{row.passes.median:>10.2f}{cells}"
        )


def _show_floors(measured: Measured) -> None:
    rows = [row for row in measured.decode if row.floors]
    if not rows:
        return
    names = [name for name in rows[0].floors if name != ATTENTION]
    with_attention = rows[0].all_products() is not None
    print(
        "\n  floor: rows    context"
        + "".join(f"{name + ' ms':>20}  step/" for name in names)
        + ("  + attention's ms  step/" if with_attention else "")
        + "   step/floor   best/best"
    )
    for row in rows:
        cells = "".join(
            f"{row.floors[name].median:>20.2f}{row.step.ratio_to(row.floors[name]):>7.2f}" for name in names
        )
        if (products := row.all_products()) is not None:
            cells += f"{products.median:>18.2f}{row.step.ratio_to(products):>7.2f}"
        floor = row.floors[row.floor() or BANDWIDTH]
        best = row.step.best / floor.best
        print(f"  {row.batch:>11}{row.context:>11.0f}{cells}{row.step.ratio_to(floor):>13.2f}{best:>12.2f}")


def _show_memory(measured: Measured) -> None:
    memory, mib = measured.memory, 1 << 20
    print(f"\n  peak RSS, MiB: {memory.peak_rss_loaded / mib:.0f} loaded, {memory.peak_rss / mib:.0f} in use")
    if memory.weights_read_by_a_step is not None:
        print(f"  weights that a step reads, MiB: {memory.weights_read_by_a_step / mib:.0f}")
    print(f"  KV cache, bytes a token: {memory.kv_cache_per_token}")
    if measured.bandwidth_gb_per_s is not None:
        print(f"  memory bandwidth, GB/s: {measured.bandwidth_gb_per_s:.1f}")
    print(f"  reads of device data in a step: {measured.device_reads_per_step}")


def _show_processors(cost: Processors) -> None:
    print(
        f"  LogitBias, 8 entries in each of {cost.batch} rows: {cost.off.median:.2f} -> {cost.on.median:.2f} ms, "
        f"{cost.cost_percent:+.2f} % turn by turn; the chain itself {100 * cost.chain_ms / cost.on.median:.2f} %"
    )


def _show_guided(cost: Guided) -> None:
    print(
        f"  JSON of a schema in each of {cost.batch} rows: {cost.off.median:.2f} -> {cost.on.median:.2f} ms, "
        f"{cost.cost_percent:+.2f} % turn by turn; the mask itself {100 * cost.mask_ms / cost.on.median:.2f} %"
    )
