"""What each processor did, counted in the worker and told to the API process."""

from __future__ import annotations

import msgspec

OK, QUARANTINED = "ok", "quarantined"


class ProcessorStats(msgspec.Struct):
    """Counters of one declared processor since the worker started.

    seconds: time spent in its `update_state` and `apply`. rows: rows it was used on, summed over steps. requests:
    requests that used it. faults: steps in which it failed. slow_steps: steps in which it took longer than its time
    budget. skipped_greedy: steps in which it was left out because every row was greedy. state: "ok" or "quarantined".
    """

    name: str
    state: str = OK
    seconds: float = 0.0
    rows: int = 0
    requests: int = 0
    faults: int = 0
    slow_steps: int = 0
    skipped_greedy: int = 0
    last_error: str | None = None
