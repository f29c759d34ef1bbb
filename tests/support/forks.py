"""Programs in forks of one process that has imported the package: each process of its own would import it again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from support.server import free_port

SECONDS = 300.0
SERVER = "fastdeploy_lp.entrypoints.openai.server"
COMMAND = "from fastdeploy_lp.entrypoints.cli import main\nmain({!r})"

# A fork goes on as the main program, so that it ends as a program of its own would.
FORKS = """
import importlib, json, os, sys

given = json.load(sys.stdin)
for name in given["modules"]:
    importlib.import_module(name)
for number, program in enumerate(given["programs"]):
    child = os.fork()
    if child == 0:
        for descriptor in (1, 2):
            os.dup2(os.open(f"{given['folder']}/{number}.{descriptor}", os.O_WRONLY | os.O_CREAT), descriptor)
        os.environ.update(program["variables"])
        sys.path[:0] = program["paths"]
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
if child == 0:
    exec(program["text"])
"""


@dataclass(frozen=True)
class Program:
    """A program's text, variables of its environment, and folders to import from; no program may rely on another."""

    text: str
    variables: Mapping[str, str] = field(default_factory=dict)
    paths: Sequence[str] = ()


def command(*arguments: str, variables: Mapping[str, str] | None = None, paths: Sequence[str] = ()) -> Program:
    """Returns a program that is `fastdeploy-lp` with these arguments."""
    return Program(COMMAND.format(list(arguments)), variables or {}, paths)


def serve(*arguments: str, variables: Mapping[str, str] | None = None, paths: Sequence[str] = ()) -> Program:
    """Returns a program that is `fastdeploy-lp serve` on a free port, since others may use the default one."""
    return command("serve", "--port", str(free_port()), *arguments, variables=variables, paths=paths)


def run_forks(
    programs: Sequence[Program],
    folder: Path,
    environment: Mapping[str, str],
    *,
    modules: Sequence[str] = (SERVER,),
    python: str = sys.executable,
) -> list[subprocess.CompletedProcess[str]]:
    """Runs programs one after the other, in `folder`; what each did is in its place.

    modules: imported once, before the first fork; they must not start a thread.
    """
    outputs = folder / "outputs"
    outputs.mkdir(parents=True)
    given = {"modules": modules, "programs": [asdict(each) for each in programs], "folder": str(outputs)}
    parent = subprocess.Popen(
        [python, "-c", FORKS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=dict(environment),
        start_new_session=True,
    )
    try:
        shown, errors = parent.communicate(json.dumps(given), timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.communicate()
        raise
    statuses = [int(line) for line in shown.splitlines()]
    if parent.returncode != 0 or len(statuses) != len(programs):
        raise RuntimeError(f"status {parent.returncode}: {errors}")
    return [
        subprocess.CompletedProcess(each.text, status, *((outputs / f"{number}.{n}").read_text() for n in (1, 2)))
        for number, (each, status) in enumerate(zip(programs, statuses, strict=True))
    ]
