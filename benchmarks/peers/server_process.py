"""A server that runs for the length of a `with` block."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from types import TracebackType
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, build_opener

from fastdeploy_lp.platforms.cpu import callers_environment
from peers.contender import Contender, without_folders

POLL_SECONDS = 0.2
STOP_SECONDS = 30.0
# A proxy that the environment names knows nothing of this machine's ports.
DIRECT = build_opener(ProxyHandler({}))


class ServerError(Exception):
    """A server that did not start; the message has the last line that it printed, without folders."""


class ServerProcess:
    """`with ServerProcess(contender, seconds) as server:` returns a server that answers /health with 200.

    Raises ServerError if it ends by itself or is not healthy within `seconds`. It runs in a separate process group,
    which is ended after the block.
    """

    def __init__(self, contender: Contender, seconds: float) -> None:
        self._contender = contender
        self._seconds = seconds
        self._port = free_port()
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed by __exit__
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """The server's URL, without `/v1`."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The process that was started; raises ServerError outside of the block."""
        if self._process is None:
            raise ServerError("not started")
        return self._process.pid

    def __enter__(self) -> ServerProcess:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stop()

    def _start(self) -> None:
        command = [word.replace("{port}", str(self._port)) for word in self._contender.command]
        environment = {**callers_environment(), **self._contender.environment}
        try:
            self._process = subprocess.Popen(
                command, stdout=self._log, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
            )
        except OSError as error:
            raise ServerError(without_folders(str(error))) from error
        deadline = time.monotonic() + self._seconds
        while not self._healthy():
            if self._process.poll() is not None:
                raise ServerError(f"ended with status {self._process.returncode}: {self._last_words()}")
            if time.monotonic() > deadline:
                raise ServerError(f"not healthy after {self._seconds:.0f} s: {self._last_words()}")
            time.sleep(POLL_SECONDS)

    def _healthy(self) -> bool:
        try:
            with DIRECT.open(f"{self.url}/health", timeout=self._seconds) as response:
                return bool(response.status == 200)
        except HTTPError as error:
            error.close()
            return False
        except (URLError, OSError):
            return False

    def _stop(self) -> None:
        process = self._process
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            # Remaining processes of the server would share the cores with the next one.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        self._log.close()

    def output(self) -> str:
        """Everything that the server has printed so far."""
        # A separate position: the server writes at the end of the same open file.
        with open(f"/proc/self/fd/{self._log.fileno()}", errors="replace") as printed:
            return printed.read()

    def _last_words(self) -> str:
        lines = [line.strip() for line in self.output().splitlines() if line.strip()]
        errors = [line for line in lines if re.search(r"\w*Error\b|error:", line)]
        return without_folders((errors or lines or ["it printed nothing"])[-1])[:300]


def free_port() -> int:
    """Returns a free TCP port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
