"""Counts the calls of a step for which the host waits for the device, in a trace of CUDA's own functions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

STEP, READ = "engine step", "one read"
# A copy without `Async` waits by itself; one with it to memory that is not pinned is followed by one of the others.
WAITING = {
    "cudaMemcpy",
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
    "cuEventSynchronize",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
}


def waits_within(trace: Mapping[str, Any], marker: str) -> list[Counter[str]]:
    """For each event of a profiler's trace whose name begins so, in order, how often which function waited."""
    events = list(_events(trace))
    marked = sorted((begin, begin + length) for name, begin, length in events if name.startswith(marker))
    calls = [(begin, name) for name, begin, _ in events if name in WAITING]
    return [Counter(name for at, name in calls if begin <= at < end) for begin, end in marked]


def load_trace(folder: Path) -> dict[str, Any]:
    """The one trace in a folder."""
    (path,) = folder.glob("*.paddle_trace.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _events(trace: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
    """Name, beginning and length in microseconds; the profiler writes an event's length behind its name as well."""
    for event in trace["traceEvents"]:
        if event.get("ph") == "X":
            yield event["name"].partition("[")[0].strip(), float(event["ts"]), float(event["dur"])
