"""Starts the server on the default model, runs every benchmark for a moment against it, and stops it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.error import URLError

from fastdeploy_lp.platforms.cpu import THREAD_VARIABLES

HERE = Path(__file__).parent
START_SECONDS = 120.0
SERVER = "fastdeploy_lp.entrypoints.openai.api_server"


def main() -> int:
    """The first exit status that is not 0."""
    # Beside other programs, a second thread mostly waits for the first one, and spins.
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    port = _free_port()
    options = ["--model", "smollm2-135m", "--port", str(port), "--logits-processors", "LogitBiasLogitsProcessor"]
    server = subprocess.Popen([sys.executable, "-m", SERVER, *options])
    try:
        _wait_until_healthy(port, server)
        status = _run("serving.py", "--smoke", "--base-url", f"http://127.0.0.1:{port}/v1")
    finally:
        server.terminate()
        server.wait()
    runs = (
        ("http_overhead.py", "--smoke"),
        ("chain.py", "--smoke"),
        ("phrase_costs.py", "--smoke"),
        ("trace_cost.py", "--smoke"),
        ("engine.py", "--smoke"),
        ("quality.py", "--smoke"),
        ("draws.py", "--smoke"),
        ("json_schemas.py", "--smoke"),
        ("scheduler.py", "--steps", "20"),
        ("compare.py", "--smoke"),
        ("simulate.py", "--smoke"),
        ("data_parallel.py", "--smoke"),
        ("load.py", "--smoke"),
        ("victim.py", "--smoke"),
        ("speculation.py", "--smoke"),
        ("same_tokens.py", "--smoke"),
        ("files_passed.py", "--limit", "55"),
    )
    return status or next((failed for run in runs if (failed := _run(*run))), 0)


def _run(benchmark: str, *options: str) -> int:
    return subprocess.run([sys.executable, str(HERE / benchmark), *options], check=False).returncode


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_healthy(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise SystemExit(f"the server ended with status {server.returncode}")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health").close()
        except URLError:
            time.sleep(0.2)
        else:
            return
    raise SystemExit(f"the server was not healthy after {START_SECONDS:.0f} s")


if __name__ == "__main__":
    raise SystemExit(main())
