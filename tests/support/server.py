"""A real server process for tests, on free ports of 127.0.0.1."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from urllib.error import URLError
from urllib.request import urlopen

from fastdeploy_lp.platforms.cpu import THREAD_VARIABLES, callers_environment
from support.processes import children_of
from support.server_forks import REPOSITORY, ServerFork

TESTS = REPOSITORY / "tests"
API_SERVER = "fastdeploy_lp.entrypoints.openai.api_server"
START_SECONDS = 300.0
DEFAULT_MODEL = "smollm2-135m"
# Where `make test` installs the packages of tests/plugins.
PLUGINS = Path(sys.prefix) / "test-plugins"
# logits-processor-zoo, without the packages that it requires and these tests do not need.
ZOO = Path(sys.prefix) / "test-zoo"


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def server_command(*options: str, module: str = API_SERVER, python: str = sys.executable) -> list[str]:
    """The command line of a server; give it the port yourself."""
    return [python, "-m", module, *options]


def server_environment(*, every_core: bool = False) -> dict[str, str]:
    """Environment of a program that may import `tests/support`; it computes in one thread unless `every_core`.

    Tests run two at a time, so a second thread mostly waits for the first, and spins: the same answers of the default
    model took 1.6 times the processor time.
    """
    given = {name: value for name, value in callers_environment().items() if name not in THREAD_VARIABLES}
    threads = {} if every_core else dict.fromkeys(THREAD_VARIABLES, "1")
    return {**given, **threads, "PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, TESTS, PLUGINS, ZOO)))}


class ServerProcess:
    """`with ServerProcess("--logits-processors", "X") as server:` gives one that is ready, and stops it afterwards.

    Without `own_metrics_port` the metrics are left on the API's port; `env` is set on top of the usual environment.
    `python` runs it. It computes in one thread unless `every_core`. With the usual module and Python it is a fork of
    a process that has imported the module.
    """

    def __init__(
        self,
        *options: str,
        model: str = DEFAULT_MODEL,
        module: str = API_SERVER,
        own_metrics_port: bool = True,
        env: Mapping[str, str] | None = None,
        python: str = sys.executable,
        every_core: bool = False,
    ) -> None:
        self.port = free_port()
        self.metrics_port = free_port() if own_metrics_port else self.port
        ports = ["--port", str(self.port)]
        if own_metrics_port:
            ports += ["--metrics-port", str(self.metrics_port)]
        # As for other models: tests sample at temperature 1 where they do not say otherwise.
        sampling = ["--override-generation-config", "{}"] if model == DEFAULT_MODEL else []
        self._options = ["--model", model, *ports, *sampling, *options]
        self._module, self._python = module, python
        self._env = {**server_environment(every_core=every_core), **(env or {})}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by __exit__
        self.process: subprocess.Popen[bytes] | ServerFork | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        """What the server runs with."""
        return self._env

    @property
    def url(self) -> str:
        """Where the API is, without `/v1`."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def metrics_url(self) -> str:
        """Where the metrics are."""
        return f"http://127.0.0.1:{self.metrics_port}/metrics"

    @property
    def pid(self) -> int:
        """The API process."""
        return self._running().pid

    @property
    def worker_pid(self) -> int:
        """The worker process: the API process's only child."""
        workers = self._workers()
        if len(workers) != 1:
            raise RuntimeError(f"{len(workers)} workers")
        return workers[0]

    @property
    def worker_pids(self) -> set[int]:
        """The processes of all workers."""
        return set(self._workers())

    @property
    def log(self) -> str:
        """What the server printed so far."""
        # Not by reading from its beginning: the server writes where this file stands.
        number = self._log.fileno()
        return os.pread(number, os.fstat(number).st_size, 0).decode(errors="replace")

    def launch(self) -> ServerProcess:
        """Start and do not wait."""
        if (self._module, self._python) == (API_SERVER, sys.executable):
            self.process = ServerFork(self._options, self._env, self._log.fileno())
        else:
            command = server_command(*self._options, module=self._module, python=self._python)
            self.process = subprocess.Popen(
                command, stdout=self._log, stderr=subprocess.STDOUT, env=self._env, cwd=REPOSITORY
            )
        return self

    def start(self) -> ServerProcess:
        """Start and wait until /health answers 200."""
        self.launch()
        wait_until(self._healthy, START_SECONDS, lambda: self.log)
        return self

    def stop(self, number: int = signal.SIGTERM, seconds: float = 60.0) -> int:
        """Signal the server and give its exit status."""
        process = self._running()
        process.send_signal(number)
        return process.wait(seconds)

    def close(self) -> None:
        """Stop the server if it still runs, by force if it does not follow, and drop its log."""
        try:
            if self.process is not None and self.process.poll() is None:
                self.stop()
        finally:
            if self.process is not None and self.process.poll() is None:
                self.stop(signal.SIGKILL)
            self._log.close()

    def __enter__(self) -> ServerProcess:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def _workers(self) -> list[int]:
        return children_of(self.pid, "fastdeploy_lp.worker")

    def _running(self) -> subprocess.Popen[bytes] | ServerFork:
        if self.process is None:
            raise RuntimeError("the server was not started")
        return self.process

    def _healthy(self) -> bool:
        if self._running().poll() is not None:
            raise RuntimeError(f"the server ended with status {self._running().returncode}:\n{self.log}")
        return health(self.url) == 200


def health(url: str) -> int | None:
    """Status of GET /health; None while nobody listens."""
    try:
        with urlopen(f"{url}/health") as response:
            status: int = response.status
            return status
    except URLError as error:
        return getattr(error, "code", None)


def wait_until(condition: object, seconds: float, describe: object = None) -> None:
    """Poll a callable until it is true; TimeoutError otherwise, with what `describe` returns."""
    deadline, pause = time.monotonic() + seconds, 0.01
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise TimeoutError(describe() if callable(describe) else "the condition did not come true")
        time.sleep(pause)
        # What takes long is asked for less often: most conditions are requests to a server.
        pause = min(pause * 1.5, 0.1)
