"""Frames on a pipe between a process and its parent: eight bytes of length, then the content."""

from __future__ import annotations

from io import RawIOBase
from typing import IO


def read_frame(pipe: RawIOBase) -> bytes:
    """Returns the next frame; raises EOFError when the other end is closed."""
    return _read_exactly(pipe, int.from_bytes(_read_exactly(pipe, 8), "big"))


def write_frame(pipe: IO[bytes], content: bytes) -> None:
    """Sends one frame; raises BrokenPipeError when the other end is closed."""
    pipe.write(len(content).to_bytes(8, "big") + content)
    pipe.flush()


def _read_exactly(pipe: RawIOBase, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        part = pipe.read(size - len(content))
        if not part:
            raise EOFError("the other process closed the pipe")
        content += part
    return bytes(content)
