"""Processes, files, ports and shared memory that a server must not leave."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

import httpx

from support.processes import process_exists
from support.server import ServerProcess, wait_until

SHARED_MEMORY = Path("/dev/shm")
# A processor with a runtime of LLVM's OpenMP, which enters its processes in shared memory.
REGISTERS = "support.registering:RegisteringLogitsProcessor"
PROCESS_SECONDS = 30.0


def check_nothing_left(server: ServerProcess, *worker_pids: int, before: Collection[str] | None = None) -> None:
    """Raises AssertionError unless the server's processes, temporary files, shared memory and ports are gone.

    With the names of shared memory `before` its start, new names that belong to no known process count, too.
    """
    wait_until(lambda: not any(map(process_exists, worker_pids)), PROCESS_SECONDS, lambda: "a worker lives on")
    assert not process_exists(server.pid)
    for port in (server.port, server.metrics_port):
        with socket.create_server(("127.0.0.1", port)):
            pass
    assert os.listdir(server.environment["TMPDIR"]) == []
    own = _names_with(*(f"_{pid}_" for pid in (server.pid, *worker_pids)))
    assert not own, f"shared memory is left: {own}"

    def others() -> set[str]:
        return _names_with("fastdeploy", "paddle") - set(before or ())

    if before is not None:
        # Servers of other tests, which run at the same time, may have some for a while.
        wait_until(lambda: not others(), PROCESS_SECONDS, lambda: f"shared memory is left: {others()}")


def _names_with(*marks: str) -> set[str]:
    return {name for name in os.listdir(SHARED_MEMORY) if any(map(name.__contains__, marks))}


def read_to_the_end(payloads: Iterator[str]) -> list[str]:
    """Payloads that still come; the server may cut the connection."""
    rest: list[str] = []
    with suppress(httpx.TransportError):
        rest.extend(payloads)
    return rest
