"""A chat that somebody types, in a real terminal: prompts, an answer that is stopped, the end."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

from support.server import server_environment
from support.tiny_checkpoint import write_tiny_checkpoint

SECONDS = 60.0
# It takes its standard input as its terminal, so that Ctrl-C reaches it.
PROGRAM = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from fastdeploy_lp.entrypoints.cli import main
main(sys.argv[1:])
"""
ENDLESS = ["--sampling", "temperature=0", "max_tokens=240", "ignore_eos=true"]
CTRL_C, CTRL_D = b"\x03", b"\x04"


class Terminal:
    """A chat in a terminal of its own."""

    def __init__(self, model: str) -> None:
        self._screen, keyboard = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "chat", "--model", model, *ENDLESS],
            stdin=keyboard,
            stdout=keyboard,
            stderr=keyboard,
            start_new_session=True,
            env=server_environment() | {"TERM": "dumb"},
        )
        os.close(keyboard)
        self._shown = ""

    def type(self, keys: bytes) -> None:
        os.write(self._screen, keys)

    def read_until(self, text: str) -> str:
        """What is shown up to and with a text."""
        deadline = time.monotonic() + SECONDS
        while text not in self._shown:
            if time.monotonic() > deadline or not select.select([self._screen], [], [], SECONDS)[0]:
                raise TimeoutError(self._shown)
            self._shown += os.read(self._screen, 4096).decode(errors="replace")
        shown, text, self._shown = self._shown.partition(text)
        return shown + text

    def close(self) -> int:
        """The exit status, by force if it does not come by itself."""
        try:
            return self._process.wait(SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._screen)


def test_an_answer_is_stopped_and_the_chat_goes_on(tmp_path: Path) -> None:
    terminal = Terminal(write_tiny_checkpoint(tmp_path))
    try:
        terminal.read_until("> ")
        terminal.type(b"Hello\n")
        terminal.read_until("Hello\r\n")
        terminal.read_until("l")  # of the answer's beginning
        terminal.type(CTRL_C)
        terminal.read_until("(stopped)\r\n> ")
        terminal.type(b"/set max_tokens 3\n")
        terminal.read_until("> ")
        terminal.type(b"/set\n")
        assert '"max_tokens": 3' in terminal.read_until("> ")
        terminal.type(CTRL_D)
    finally:
        status = terminal.close()
    assert status == 0
