"""Results of a level from its samples, and a table of all levels."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from fastdeploy_lp.entrypoints.bench.load import Sample


def percentile(values: Sequence[float], q: int) -> float:
    """Returns the ``q``-th percentile (1 to 99), interpolating linearly between the two nearest ranks."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[q - 1]


def distribution_ms(seconds: Sequence[float | None]) -> dict[str, float] | None:
    """Returns statistics of the known values in milliseconds, or None if there are none."""
    known = [1000 * value for value in seconds if value is not None]
    if not known:
        return None
    summary: dict[str, float] = {"count": len(known), "mean": statistics.fmean(known), "max": max(known)}
    return summary | {f"p{q}": percentile(known, q) for q in (50, 90, 99)}


def summarise(samples: Sequence[Sample], full_length: int | None, warmup: Sequence[Sample] = ()) -> dict[str, Any]:
    """Returns the results of one level's samples; failed requests count only as errors and in the times.

    ``full_length``: the output length that every request should reach, or None for any length.
    """
    good = [sample for sample in samples if sample.error is None]
    errors = [sample.error for sample in (*warmup, *samples) if sample.error is not None]
    wall = max(sample.ended for sample in samples) - min(sample.started for sample in samples)
    output_tokens = sum(sample.output_tokens for sample in good)
    return {
        "completed": len(good),
        "errors": len(errors),
        "first_error": errors[0] if errors else None,
        "wall_s": wall,
        "mean_in_flight": sum(sample.latency for sample in samples) / wall,
        "output_tokens_per_s": output_tokens / wall,
        "requests_per_s": len(good) / wall,
        "output_tokens": output_tokens,
        "prompt_tokens": sum(sample.prompt_tokens for sample in good),
        "cached_prompt_tokens": sum(sample.cached_tokens for sample in good),
        "text_chunks": sum(sample.text_chunks for sample in good),
        "short_outputs": sum(full_length is not None and sample.output_tokens < full_length for sample in good),
        "ttft_ms": distribution_ms([sample.ttft for sample in good]),
        "tpot_ms": distribution_ms([sample.tpot for sample in good]),
        "latency_ms": distribution_ms([sample.latency for sample in good]),
    }


def render(levels: Sequence[dict[str, Any]]) -> str:
    """Returns a table with one column per level, followed by notes on failures and short outputs."""
    level_name = "request_rate" if "request_rate" in levels[0] else "concurrency"
    counts = (level_name, "completed", "errors", "prompt_tokens", "output_tokens")
    rows: list[tuple[str, list[str]]] = []
    for key in (*counts, "wall_s", "mean_in_flight", "requests_per_s", "output_tokens_per_s"):
        rows.append((key, [f"{x[key]:.2f}" if isinstance(x[key], float) else str(x[key]) for x in levels]))
    for key in ("ttft_ms", "tpot_ms", "latency_ms"):
        for q in ("p50", "p90", "p99"):
            rows.append((f"{key} {q}", [f"{x[key][q]:.2f}" if x[key] else "-" for x in levels]))
    lines = [f"{label:<22}" + "".join(f"{cell:>12}" for cell in cells) for label, cells in rows]
    lines.insert(1, "-" * len(lines[0]))
    for level in levels:
        where = f"{level_name} {level[level_name]}:"
        if level["errors"]:
            lines.append(f"{where} {level['errors']} failed, the first with: {level['first_error']}")
        if level["short_outputs"]:
            lines.append(f"{where} {level['short_outputs']} outputs ended before max_tokens despite ignore_eos")
    return "\n".join(lines)
