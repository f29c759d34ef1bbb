"""Counts the calls of a step for which the host waits for the device, in a trace of CUDA's own functions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

STEP = "engine step"
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


def waits_by_step(trace: Mapping[str, Any]) -> list[Counter[str]]:
    """For each step in a trace of `paddle.profiler`, in order, how often which waiting function was called in it."""
    events = list(_events(trace))
    steps = sorted((begin, begin + length) for name, begin, length in events if name.startswith(STEP))
    calls = [(begin, name) for name, begin, _ in events if name in WAITING]
    return [Counter(name for at, name in calls if begin <= at < end) for begin, end in steps]


def read_waits(folder: Path) -> list[Counter[str]]:
    """Of the one trace in a folder."""
    (path,) = folder.glob("*.paddle_trace.json")
    return waits_by_step(json.loads(path.read_text()))


def _events(trace: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
    """Name, beginning and length in microseconds; the profiler writes an event's length behind its name as well."""
    for event in trace["traceEvents"]:
        if event.get("ph") == "X":
            yield event["name"].partition("[")[0].strip(), float(event["ts"]), float(event["dur"])
