"""Processor time from /proc: of a process with all that it started, and of everything that runs."""

from __future__ import annotations

import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def busy_seconds() -> float:
    """Seconds in which a core worked, summed over cores since the start of the machine.

    Time that the hypervisor gave to other machines is part of it: it was not there for this one.
    """
    user, nice, system, _, _, interrupts, soft_interrupts, stolen = _first_line("/proc/stat")[:8]
    return (user + nice + system + interrupts + soft_interrupts + stolen) / TICKS


def tree_seconds(root: int) -> float:
    """Seconds that process `root`, its descendants and their ended children took."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The name, in parentheses, may hold spaces and parentheses itself.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            # It has ended since it was listed.
            continue
        pid = int(entry.name)
        parents[pid] = int(fields[1])
        seconds[pid] = sum(map(int, fields[11:15])) / TICKS
    return sum(spent for pid, spent in seconds.items() if _descends(pid, root, parents))


def _descends(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid != root:
        if (parent := parents.get(pid, 0)) == 0:
            return False
        pid = parent
    return True


def _first_line(path: str) -> list[int]:
    with Path(path).open() as stream:
        return [int(word) for word in stream.readline().split()[1:]]
