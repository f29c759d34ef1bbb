"""Containment of exceptions from processors' code, which may raise anything and print as anything."""

from __future__ import annotations

import asyncio
import signal
import threading

# Characters of an error's text that reach logs, counters and clients.
MAX_TEXT = 2000


class EscapedError(Exception):
    """A processor raised an exception that would have ended the process: SystemExit, a cancellation, a panic."""


def contained(error: BaseException) -> Exception:
    """Returns `error`, or an EscapedError that names it if it is no Exception.

    Raises `error` itself if it may be the interrupt of a user at the terminal.
    """
    if isinstance(error, Exception):
        return error
    if isinstance(error, KeyboardInterrupt) and _interrupts_raise():
        raise error
    if isinstance(error, SystemExit):
        return EscapedError("it called for the end of the process, which is not its own")
    return EscapedError(f"it raised {described(error)}, which is no Exception")


def _interrupts_raise() -> bool:
    """Returns True if SIGINT raises KeyboardInterrupt in this thread.

    It does in a main thread, but not where SIGINT is ignored (a worker) or handled by an event loop (the server).
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    handler = signal.getsignal(signal.SIGINT)
    if handler in (signal.SIG_IGN, signal.SIG_DFL):
        return False
    of_loop = isinstance(getattr(handler, "__self__", None), asyncio.AbstractEventLoop)
    return not of_loop and getattr(handler, "__module__", None) != "asyncio.unix_events"


def described(error: BaseException) -> str:
    """The type and text of an exception: bounded, valid Unicode, and never raising."""
    return f"{type(error).__name__}: {printed(error)}"


def printed(error: BaseException) -> str:
    """The text of an exception, likewise."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - a processor's exception may fail to print, too
        return "it cannot be printed"
    text = text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"
    return text.encode("utf-8", "replace").decode()
