"""Memory of the server's two processes, and its metrics, over a soak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

WORKER_MODULE = "fastdeploy_lp.worker"
SETTLED_SHARE = 0.2
KIB_IN_MB = 1024 / 1e6
MEMORY_FIELDS = ("api_rss_mb", "worker_rss_mb", "worker_anonymous_mb")


@dataclass(frozen=True)
class Point:
    """One moment: requests done, memory in MB (10^6 bytes), and the metrics without labels by their full names."""

    done: int
    api_rss_mb: float
    worker_rss_mb: float
    worker_anonymous_mb: float
    metrics: dict[str, float]


def take_point(done: int, api: int, worker: int, metrics: dict[str, float]) -> Point:
    """Reads both processes' memory; raises OSError when one of them is gone."""
    of_api, of_worker = status_mb(api), status_mb(worker)
    return Point(done, of_api["VmRSS"], of_worker["VmRSS"], of_worker["RssAnon"], metrics)


def status_mb(pid: int) -> dict[str, float]:
    """The sizes in /proc/PID/status, in MB; raises OSError when the process has ended."""
    sizes = parse_status(Path(f"/proc/{pid}/status").read_text())
    if "VmRSS" not in sizes:  # ended, but not yet waited for by its parent
        raise ProcessLookupError(f"process {pid} of the server has ended")
    return sizes


def proportional_mb(pid: int) -> float:
    """A process's resident memory in MB, its share of pages that others map too; raises OSError when it has ended."""
    return parse_status(Path(f"/proc/{pid}/smaps_rollup").read_text())["Pss"]


def parse_status(text: str) -> dict[str, float]:
    """Sizes of a status file's lines in kB (which means KiB), in MB."""
    pairs = (line.split() for line in text.splitlines())
    return {words[0].rstrip(":"): int(words[1]) * KIB_IN_MB for words in pairs if len(words) == 3 and words[2] == "kB"}


def worker_pid(api: int) -> int:
    """The API process's worker; raises ProcessLookupError when it has none."""
    for children in Path(f"/proc/{api}/task").glob("*/children"):
        for child in children.read_text().split():
            if WORKER_MODULE in Path(f"/proc/{child}/cmdline").read_text().split("\0"):
                return int(child)
    raise ProcessLookupError("the server has no worker process")


def parse_metrics(text: str) -> dict[str, float]:
    """The samples without labels of a page of Prometheus metrics."""
    lines = (line.split() for line in text.splitlines() if not line.startswith("#") and "{" not in line)
    return {words[0]: float(words[1]) for words in lines if len(words) == 2}


def growth_mb(points: Sequence[Point]) -> dict[str, float]:
    """Last point less the first one with a fifth of the requests done: what was filled by design is full by then.

    Raises ValueError without points.
    """
    if not points:
        raise ValueError("points: must not be empty")
    last = points[-1]
    settled = next(point for point in points if point.done >= SETTLED_SHARE * last.done)
    return {name: getattr(last, name) - getattr(settled, name) for name in MEMORY_FIELDS}
