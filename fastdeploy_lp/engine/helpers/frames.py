"""Frames on the standard input and output of a child process: an eight-byte length, then the content."""

from __future__ import annotations

from typing import IO

HEAD_BYTES = 8


def framed(content: bytes) -> bytes:
    """Returns a frame with this content."""
    return len(content).to_bytes(HEAD_BYTES, "big") + content


def size_of(head: bytes) -> int:
    """Returns the content length stored in the head of a frame."""
    return int.from_bytes(head, "big")


def read_frame(pipe: IO[bytes]) -> bytes | None:
    """Returns the content of the next frame, or None once the other end has closed the pipe."""
    head = pipe.read(HEAD_BYTES)
    return pipe.read(size_of(head)) if len(head) == HEAD_BYTES else None


def write_frame(pipe: IO[bytes], content: bytes) -> None:
    """Writes a frame and flushes the pipe."""
    pipe.write(framed(content))
    pipe.flush()
