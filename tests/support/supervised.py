"""A server of a tiny model whose worker can be ended, and requests that last until something ends them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from support.chat import HELLO
from support.server import ServerProcess, health, wait_until
from support.tiny import LONG_CONTEXT, write_tiny_checkpoint

BACK_SECONDS = 300.0
LONG: dict[str, Any] = {
    "messages": HELLO,
    "max_tokens": LONG_CONTEXT - 100,
    "ignore_eos": True,
    "temperature": 0,
}


def supervised_server(folder: Path, *options: str, **kwargs: Any) -> ServerProcess:
    """A server of a tiny model with room for long answers, its checkpoint and its temporary files below `folder`."""
    checkpoint, temporary = folder / "c", folder / "t"
    checkpoint.mkdir()
    temporary.mkdir()
    write_tiny_checkpoint(checkpoint, context=LONG_CONTEXT)
    sizes = ["--max-num-seqs", "4", "--max-model-len", str(LONG_CONTEXT)]
    return ServerProcess(*sizes, *options, model=str(checkpoint), env={"TMPDIR": str(temporary)}, **kwargs)


def kill_worker(server: ServerProcess, number: int = signal.SIGKILL) -> int:
    """Send a signal to the worker; gives its id."""
    pid = server.worker_pid
    os.kill(pid, number)
    return pid


def wait_for_new_worker(server: ServerProcess, old: int = 0, *, ready: bool = True) -> int:
    """Wait for a worker besides `old`, until it takes requests if it has to be `ready`; gives its id."""
    found: list[int] = []

    def is_there() -> bool:
        try:
            # From one look: at the next, this worker may have ended and another have come.
            found[:] = server.worker_pids - {old}
            return len(found) == 1 and (not ready or health(server.url) == 200)
        except OSError:
            return False

    wait_until(is_there, BACK_SECONDS, lambda: server.log)
    return found[0]
