"""Counts the files of the package of which a function runs for a request, in each process.

The request is a streamed chat with `logit_bias`, on a server that has answered the same request before. Processes
record calls by `sys.setprofile`, switched on by a `sitecustomize` module in a temporary folder; the package has no part
in it. Exits with status 1 if there are more files than `--limit`.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.error import URLError

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "fastdeploy_lp"
SERVER = "fastdeploy_lp.entrypoints.openai.api_server"
FOLDER_VARIABLE = "FILES_PASSED_FOLDER"
START_SECONDS, ANSWER_SECONDS, RECORD_SECONDS = 300.0, 120.0, 30.0
POLL_SECONDS = 0.02
BODY = {
    "messages": [{"role": "user", "content": "Hello!"}],
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_tokens": 16,
    "logit_bias": {"42": -100},
}
# Each process announces itself by a file, and answers the files "on" and "off" by further files.
HOOK = f"""
import json, os, sys, threading, time
from pathlib import Path

folder = Path(os.environ["{FOLDER_VARIABLE}"])
files, recording = set(), False


def record(frame, event, _):
    # Code of modules and classes, which runs once on import, has no fast locals.
    if recording and event == "call" and frame.f_code.co_flags & 1:
        files.add(frame.f_code.co_filename)


def watch():
    global recording
    own = folder / str(os.getpid())
    own.with_suffix(".started").write_text(" ".join(sys.orig_argv[1:4]))
    for switch, value in (("on", True), ("off", False)):
        while not (folder / switch).exists():
            time.sleep({POLL_SECONDS})
        recording = value
        own.with_suffix(".partial").write_text(json.dumps(sorted(files)))
        own.with_suffix(".partial").rename(own.with_suffix("." + switch))


threading.Thread(target=watch, daemon=True).start()
threading.setprofile(record)
sys.setprofile(record)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the files of each process and their numbers; returns 1 if together they are more than the limit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--model", default="smollm2-135m", help="the model to serve (default: smollm2-135m)")
    parser.add_argument("--limit", type=int, help="exit with status 1 for more files than this (default: no limit)")
    parser.add_argument("--json", type=Path, help="write the files of each process to this file")
    args = parser.parse_args(argv)
    passed = files_passed(args.model)
    together = sorted({file for files in passed.values() for file in files})
    for process, files in passed.items():
        print(f"{process}: {len(files)} files")
        print("\n".join(f"  {file}" for file in files))
    print(f"all processes: {len(together)} files")
    if args.json is not None:
        args.json.write_text(json.dumps(passed, indent=1) + "\n", encoding="utf-8")
    return int(args.limit is not None and len(together) > args.limit)


def files_passed(model: str) -> dict[str, list[str]]:
    """Returns the files by command line of the process; a process that ran none for the request is left out."""
    port = _free_port()
    command = [sys.executable, "-m", SERVER, "--model", model, "--port", str(port)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(HOOK)
        paths = os.pathsep.join([name, str(ROOT)])
        server = subprocess.Popen(
            [*command, "--logits-processors", "LogitBiasLogitsProcessor"],
            env={**os.environ, FOLDER_VARIABLE: name, "PYTHONPATH": paths},
            stdout=subprocess.DEVNULL,
        )
        try:
            _wait_until(lambda: _is_healthy(port, server), START_SECONDS)
            for _ in range(2):
                _chat(port)
            _switch(folder, "on")
            _chat(port)
            _switch(folder, "off")
            return _recorded(folder)
        finally:
            server.terminate()
            server.wait()


def _recorded(folder: Path) -> dict[str, list[str]]:
    """Files below the package, by process."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.off"), key=lambda each: int(each.stem)):
        files = [Path(file) for file in json.loads(path.read_text())]
        ours = sorted(str(file.relative_to(PACKAGE)) for file in files if file.is_relative_to(PACKAGE))
        if ours:
            found[path.with_suffix(".started").read_text()] = ours
    return found


def _switch(folder: Path, switch: str) -> None:
    """Switches recording on or off and waits until every process that runs has done so."""
    (folder / switch).touch()
    _wait_until(
        lambda: all(
            path.with_suffix(f".{switch}").exists() or not Path(f"/proc/{path.stem}").exists()
            for path in folder.glob("*.started")
        ),
        RECORD_SECONDS,
    )


def _chat(port: int) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        data=json.dumps(BODY).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
        if b"[DONE]" not in answer.read():
            raise RuntimeError("the stream ended early")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _is_healthy(port: int, server: subprocess.Popen[bytes]) -> bool:
    if server.poll() is not None:
        raise RuntimeError(f"the server ended with status {server.returncode}")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as response:
            return bool(response.status == 200)
    except URLError:
        return False


def _wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("a process of the server did not answer in time")
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
