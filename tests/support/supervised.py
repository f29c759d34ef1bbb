"""A server of a tiny model whose worker can be ended, and requests that last until something ends them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from support.chat import HELLO
from support.server import ServerProcess, health, wait_until
from support.tiny import LONG_CONTEXT, write_tiny_checkpoint

BACK_SECONDS = 60.0
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


def wait_for_new_worker(server: ServerProcess, old: int) -> int:
    """Wait until another worker takes requests; gives its id."""

    def is_there() -> bool:
        try:
            return server.worker_pid != old and health(server.url) == 200
        except (RuntimeError, OSError):
            return False

    wait_until(is_there, BACK_SECONDS, lambda: server.log)
    return server.worker_pid
