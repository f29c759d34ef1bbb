"""A team with a thread for every core keeps them apart; the thread that calls it is free after a forward pass."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest
from support.server import server_environment

CORES = os.sched_getaffinity(0)
SECONDS = 120
several_cores = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")


def cores_of_threads() -> list[set[int]]:
    """The cores that each thread of this process may use."""
    found = []
    for thread in os.listdir("/proc/self/task"):
        try:
            found.append(os.sched_getaffinity(int(thread)))
        except ProcessLookupError:
            continue
    return found


def watch(seen: list[int], ended: threading.Event) -> None:
    """Notes the largest number of threads that were seen on one core each, all different."""
    while not ended.is_set():
        alone = [min(cores) for cores in cores_of_threads() if len(cores) == 1]
        seen[0] = max(seen[0], len(alone) if len(set(alone)) == len(alone) else 0)


def main(wanted: int) -> None:
    """Computes until `wanted` threads were seen on separate cores (0: some passes); prints this and what is left."""
    from support.golden import Run, model

    run = Run(list(range(3, 67)), seat=0)
    seen, ended = [0], threading.Event()
    watcher = threading.Thread(target=watch, args=(seen, ended))
    watcher.start()
    until, passes = time.monotonic() + SECONDS, 0
    while time.monotonic() < until and (seen[0] < wanted or passes < 200):
        model("tiny-llama").last_logits(run)
        passes += 1
    ended.set()
    watcher.join()
    free = os.sched_getaffinity(0) == CORES
    print(seen[0], "free" if free else "bound", sep=" ", flush=True)


def seen_in_a_process(threads: int, wanted: int) -> str:
    environment = server_environment() | {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-c", f"import test_team_cores; test_team_cores.main({wanted})"]
    here = os.path.dirname(__file__)
    environment["PYTHONPATH"] = os.pathsep.join((environment["PYTHONPATH"], here))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=2 * SECONDS)
    return done.stdout.splitlines()[-1]


@pytest.mark.usefixtures("ops")
@several_cores
def test_threads_of_a_full_team_are_on_separate_cores_while_they_compute() -> None:
    assert seen_in_a_process(len(CORES), len(CORES)) == f"{len(CORES)} free"


@pytest.mark.usefixtures("ops")
@several_cores
def test_smaller_team_is_left_to_the_kernel() -> None:
    """Two servers of one core each would otherwise share the first one."""
    assert seen_in_a_process(1, 0) == "0 free"
