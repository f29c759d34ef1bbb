"""Servers as forks of one process that has imported them: each process of its own would import them again, for a second
of processor time.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
# A fork goes on as the main program, so that it ends as a program of its own would. All end with the test process.
PARENT = """
import gc, json, os, runpy, signal, socket, sys

requests = socket.socket(fileno=int(sys.argv[1]))
from fastdeploy_lp.entrypoints.openai import server
gc.freeze()
running = set()
while True:
    request, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 1)
    if not request:
        for pid in running:
            os.kill(pid, signal.SIGKILL)
        sys.exit()
    given = json.loads(request)
    if "pid" in given:
        pid, status = os.waitpid(given["pid"], os.WNOHANG)
        running -= {pid}
        answer = os.waitstatus_to_exitcode(status) if pid else None
    else:
        answer = os.fork()
        if answer == 0:
            break
        running.add(answer)
        os.close(descriptors[0])
    requests.send(json.dumps(answer).encode())
requests.close()
os.dup2(descriptors[0], 1)
os.dup2(descriptors[0], 2)
os.close(descriptors[0])
os.environ.clear()
os.environ.update(given["environment"])
sys.argv[:] = ["", *given["options"]]
sys.path[:1] = [os.getcwd(), *given["environment"]["PYTHONPATH"].split(os.pathsep)]
runpy.run_module("fastdeploy_lp.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
"""


class _Parent:
    """The process whose forks are servers."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PARENT, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd=REPOSITORY,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            )
        atexit.register(self._end)

    def ask(self, request: Mapping[str, object], *descriptors: int) -> Any:
        with self._lock:
            socket.send_fds(self._requests, [json.dumps(request).encode()], descriptors)
            return json.loads(self._requests.recv(1 << 10))

    def _end(self) -> None:
        self._requests.close()
        self._process.wait()


class ServerFork:
    """As much of `subprocess.Popen` as tests use."""

    def __init__(self, options: Sequence[str], environment: Mapping[str, str], output: int) -> None:
        self._parent = _parent()
        given = {"options": options, "environment": dict(environment)}
        self.pid: int = self._parent.ask(given, output)
        self._ended = os.pidfd_open(self.pid)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status, or None while the server runs."""
        if self.returncode is None:
            self.returncode = self._parent.ask({"pid": self.pid})
            if self.returncode is not None:
                os.close(self._ended)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status; raises subprocess.TimeoutExpired after `timeout` seconds."""
        if self.returncode is None:
            ending = select.poll()
            ending.register(self._ended, select.POLLIN)
            if not ending.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired("a server", timeout or 0)
        status = self.poll()
        if status is None:
            raise RuntimeError("the process has ended, and its parent does not know it")
        return status

    def send_signal(self, number: int) -> None:
        """Sends a signal, if the server still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)


@functools.cache
def _parent() -> _Parent:
    return _Parent()
