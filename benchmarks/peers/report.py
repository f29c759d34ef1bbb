"""The results as a page of Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from peers.contender import printable
from peers.machine import QUIET_CORES, Machine
from peers.outcome import Outcome, Ratio, prefill_ratio, throughput_ratio, ttft_ratio
from peers.section import Verdict

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Settings:
    """The load of all servers.

    rounds: requests of each worker of a level. processors: adds a logit bias. prompt_tokens: length of the long
    prompts, 0 for none.
    """

    model: str
    concurrencies: tuple[int, ...]
    max_tokens: int
    repeats: int
    rounds: int
    processors: bool
    timestamp: str
    prompt_tokens: int = 0


def render_json(
    settings: Settings, machine: Machine, outcomes: Sequence[Outcome], verdicts: Sequence[Verdict] = ()
) -> dict[str, Any]:
    """Every level of every run, and how its server was started; no folders of this machine."""
    contenders = [
        {
            "engine": x.contender.engine,
            "precision": x.contender.precision,
            "source": x.contender.source,
            "version": x.contender.version,
            "ours": x.contender.ours,
            "command": printable(x.contender),
            "error": x.error,
            "instructions": x.instructions,
            "runs": [asdict(run) for run in x.runs],
        }
        for x in outcomes
    ]
    head = {"schema_version": SCHEMA_VERSION, "settings": asdict(settings), "machine": asdict(machine)}
    bounds = [
        {
            "bound": str(x.bound),
            "needed": x.bound.needed,
            "ratio": x.ratio and x.ratio.value,
            "peer": x.ratio and x.ratio.peer,
            "holds": x.holds,
            "counts": x.counts,
        }
        for x in verdicts
    ]
    return head | {"contenders": contenders, "bounds": bounds}


def render_results(
    settings: Settings, machine: Machine, outcomes: Sequence[Outcome], verdicts: Sequence[Verdict] = ()
) -> str:
    """The part of the page that a run writes: conditions, tables, faults and command lines."""
    lines = [*_conditions(settings, machine, outcomes), "", *_servers(settings, outcomes)]
    if settings.prompt_tokens:
        lines += ["", *_prompts(settings, outcomes)]
    if any(x.contender.ours for x in outcomes) and any(not x.contender.ours for x in outcomes):
        lines += ["", *_ratios(settings, outcomes)]
    if verdicts:
        lines += ["", *_bounds(machine, verdicts)]
    if settings.processors:
        lines += ["", *_processors(settings, outcomes)]
    if faults := [f"- {x.contender.name}: {x.problem}" for x in outcomes if x.problem]:
        lines += ["", "What went wrong:", "", *faults]
    if known := [f"- {x.contender.name}: {x.instructions}" for x in outcomes if x.instructions]:
        lines += ["", "Instruction sets, as each server or its libraries report them:", "", *known]
    lines += ["", "Start command of each server:", ""]
    for x in outcomes:
        version = f" ({x.contender.version})" if x.contender.version else ""
        lines.append(f"- {x.contender.name}{version}: `{printable(x.contender)}`")
    return "\n".join(lines) + "\n"


def _conditions(settings: Settings, machine: Machine, outcomes: Sequence[Outcome]) -> list[str]:
    levels = [level for x in outcomes for run in x.runs for level in (*run.plain, *run.biased)]
    shares = [level.other_cpu_share for level in levels]
    shares += [prefill.other_cpu_share for x in outcomes for prefill in x.prefills]
    lines = [
        f"{settings.model}, {settings.max_tokens} output tokens, greedy, streamed, {settings.timestamp}. {machine}."
    ]
    lines.append(f"Medians of {settings.repeats} runs, the servers in turn." if settings.repeats > 1 else "One run.")
    if levels:
        client = max(level.client_cpu_share for level in levels)
        lines.append(f"The load generator itself took at most {100 * client:.0f} % of a core.")
    others = max(shares, default=0.0)
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
        rows.append([x.contender.label, "tokens/s, best peer of this precision", *map(_ratio, same)])
        rows.append([x.contender.label, "tokens/s, best peer of any", *map(_ratio, every)])
        rows.append([x.contender.label, "TTFT p50, best peer of any (below 1 is better)", *map(_ratio, first)])
    return _table(["ours", "against", *(f"ratio at {n}" for n in settings.concurrencies)], rows)


def _prompts(settings: Settings, outcomes: Sequence[Outcome]) -> list[str]:
    text = f"Prompts of some {settings.prompt_tokens:,} tokens, all different, one at a time with one output token:"
    peers = [x for x in outcomes if not x.contender.ours]
    rows = [
        [
            x.contender.name,
            _number(x.prefill_tokens_per_s),
            _ratio(prefill_ratio(x, peers)) if x.contender.ours else "",
        ]
        for x in outcomes
    ]
    return [text, "", *_table(["server", "prompt tokens/s", "over the best peer"], rows)]


def _bounds(machine: Machine, verdicts: Sequence[Verdict]) -> list[str]:
    amx = "with" if "amx_int8" in machine.instructions else "without"
    rows = [[str(x.bound), x.bound.needed, _ratio(x.ratio), str(x)] for x in verdicts]
    return [f"Bounds, on a machine {amx} AMX:", "", *_table(["ratio", "bound", "measured", ""], rows)]


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
