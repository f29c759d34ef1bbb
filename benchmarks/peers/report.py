"""The results as a page of Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from peers.contender import printable
from peers.machine import QUIET_CORES, Machine
from peers.outcome import Outcome, Ratio, throughput_ratio, ttft_ratio

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Settings:
    """The load of all servers: `rounds` requests of each worker of a level; `processors` adds a logit bias."""

    model: str
    concurrencies: tuple[int, ...]
    max_tokens: int
    repeats: int
    rounds: int
    processors: bool
    timestamp: str


def render_json(settings: Settings, machine: Machine, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Every level of every run, and how its server was started; no folders of this machine."""
    contenders = [
        {
            "engine": x.contender.engine,
            "precision": x.contender.precision,
            "version": x.contender.version,
            "ours": x.contender.ours,
            "command": printable(x.contender),
            "error": x.error,
            "runs": [asdict(run) for run in x.runs],
        }
        for x in outcomes
    ]
    head = {"schema_version": SCHEMA_VERSION, "settings": asdict(settings), "machine": asdict(machine)}
    return head | {"contenders": contenders}


def render_results(settings: Settings, machine: Machine, outcomes: Sequence[Outcome]) -> str:
    """The part of the page that a run writes: conditions, tables, faults and command lines."""
    lines = [*_conditions(settings, machine, outcomes), "", *_servers(settings, outcomes)]
    if any(x.contender.ours for x in outcomes) and any(not x.contender.ours for x in outcomes):
        lines += ["", *_ratios(settings, outcomes)]
    if settings.processors:
        lines += ["", *_processors(settings, outcomes)]
    if faults := [f"- {x.contender.name}: {x.problem}" for x in outcomes if x.problem]:
        lines += ["", "What went wrong:", "", *faults]
    lines += ["", "How each server was started:", ""]
    for x in outcomes:
        version = f" ({x.contender.version})" if x.contender.version else ""
        lines.append(f"- {x.contender.name}{version}: `{printable(x.contender)}`")
    return "\n".join(lines) + "\n"


def _conditions(settings: Settings, machine: Machine, outcomes: Sequence[Outcome]) -> list[str]:
    levels = [level for x in outcomes for run in x.runs for level in (*run.plain, *run.biased)]
    lines = [
        f"{settings.model}, {settings.max_tokens} output tokens, greedy, streamed, {settings.timestamp}. {machine}."
    ]
    lines.append(f"Medians of {settings.repeats} runs, the servers in turn." if settings.repeats > 1 else "One run.")
    if levels:
        client = max(level.client_cpu_share for level in levels)
        lines.append(f"The load generator itself took at most {100 * client:.0f} % of a core.")
    others = max((level.other_cpu_share for level in levels), default=0.0)
    if others > QUIET_CORES:
        busy = f"other processes took up to {others:.2f} cores"
        lines += ["", f"> **Preliminary.** The machine was not quiet ({busy}): measure again before using a number."]
    return lines


def _servers(settings: Settings, outcomes: Sequence[Outcome]) -> list[str]:
    heads = [
        *(f"tokens/s at {n}" for n in settings.concurrencies),
        *(f"TTFT p50 at {n}, ms" for n in settings.concurrencies),
        *(f"TPOT p50 at {n}, ms" for n in settings.concurrencies),
    ]
    rows = [
        [
            x.contender.name,
            *(_throughput(x, n) for n in settings.concurrencies),
            *(_number(x.ttft_ms(n)) for n in settings.concurrencies),
            *(_number(x.tpot_ms(n)) for n in settings.concurrencies),
        ]
        for x in outcomes
    ]
    return _table(["server", *heads], rows)


def _ratios(settings: Settings, outcomes: Sequence[Outcome]) -> list[str]:
    peers = [x for x in outcomes if not x.contender.ours]
    rows = []
    for x in outcomes:
        if not x.contender.ours:
            continue
        same = [throughput_ratio(x, peers, n, same_precision=True) for n in settings.concurrencies]
        every = [throughput_ratio(x, peers, n, same_precision=False) for n in settings.concurrencies]
        first = [ttft_ratio(x, peers, n) for n in settings.concurrencies]
        rows.append([x.contender.precision, "tokens/s, best peer of this precision", *map(_ratio, same)])
        rows.append([x.contender.precision, "tokens/s, best peer of any", *map(_ratio, every)])
        rows.append([x.contender.precision, "TTFT p50, best peer of any (below 1 is better)", *map(_ratio, first)])
    return _table(["ours", "against", *(f"ratio at {n}" for n in settings.concurrencies)], rows)


def _processors(settings: Settings, outcomes: Sequence[Outcome]) -> list[str]:
    rows = [
        [x.contender.name, *(_share(x.bias_ratio(n)) for n in settings.concurrencies)]
        for x in outcomes
        if x.contender.takes_logit_bias
    ]
    text = "Throughput with a `logit_bias` of 8 entries in every request, over that without in the same run:"
    return [text, "", *_table(["server", *(f"at {n}" for n in settings.concurrencies)], rows)]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---", *("---:" for _ in heads[1:])]
    return [f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows)]


def _throughput(outcome: Outcome, concurrency: int) -> str:
    value, spread = outcome.tokens_per_s(concurrency), outcome.spread(concurrency)
    if value is None or spread is None:
        return "failed" if outcome.problem else "-"
    return f"{value:.0f} ({spread[0]:.0f}–{spread[1]:.0f})" if len(outcome.runs) > 1 else f"{value:.0f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _ratio(ratio: Ratio | None) -> str:
    return "-" if ratio is None else f"{ratio.value:.2f} ({ratio.peer})"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
