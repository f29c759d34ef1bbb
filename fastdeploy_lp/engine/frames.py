"""Frames on the standard input and output of a child process: eight bytes of length, then the content."""

from __future__ import annotations

from typing import IO

HEAD_BYTES = 8


def framed(content: bytes) -> bytes:
    """A frame with this content."""
    return len(content).to_bytes(HEAD_BYTES, "big") + content


def size_of(head: bytes) -> int:
    """The number of bytes that follow the head of a frame."""
    return int.from_bytes(head, "big")


def read_frame(pipe: IO[bytes]) -> bytes | None:
    """The content of the next frame; None once the other end has closed the pipe."""
    head = pipe.read(HEAD_BYTES)
    return pipe.read(size_of(head)) if len(head) == HEAD_BYTES else None


def write_frame(pipe: IO[bytes], content: bytes) -> None:
    """Write a frame and flush it."""
    pipe.write(framed(content))
    pipe.flush()
