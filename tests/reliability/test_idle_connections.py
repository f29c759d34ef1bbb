"""Ten thousand connections on which nothing happens."""

from __future__ import annotations

import resource
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from soak_memory import status_mb
from support.chat import HELLO, post
from support.server import ServerProcess, health
from support.tiny import write_tiny_checkpoint

OWN_FILES = 200


def open_idle(stack: ExitStack, port: int, count: int) -> None:
    """Connections that stay until the stack closes; an open file each."""
    for _ in range(count):
        connection = stack.enter_context(socket.socket())
        connection.connect(("127.0.0.1", port))


def check_service_beside(folder: Path, count: int, *options: str) -> float:
    """Requests are answered beside so many idle connections; gives the memory of one in KB."""
    write_tiny_checkpoint(folder)
    with ServerProcess(*options, model=str(folder)) as server, ExitStack() as stack:
        before = status_mb(server.pid)["VmRSS"]
        open_idle(stack, server.port, count)
        for _ in range(3):
            assert post(server, {"messages": HELLO, "max_tokens": 2}).status_code == 200
        assert health(server.url) == 200
        return (status_mb(server.pid)["VmRSS"] - before) / count * 1000


@pytest.mark.long
def test_ten_thousand_idle_connections_do_not_stop_service(tmp_path: Path) -> None:
    """As many as this machine lets one process open, up to that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        count = min(hard - OWN_FILES, 10_000)
        assert check_service_beside(tmp_path, count) < 100
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.long
def test_more_connections_than_files_do_not_stop_service(tmp_path: Path) -> None:
    """The server makes room before the kernel refuses it a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        check_service_beside(tmp_path, min(hard - OWN_FILES, 5_000), "--max-connections", "500")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
