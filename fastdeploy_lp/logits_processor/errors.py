"""Errors in declarations of processors and in requests for them, and containment of exceptions from authors' code."""

from __future__ import annotations

import signal
import threading

from fastdeploy_lp.platforms import DeviceFailure, current_platform


class LogitsProcessorSpecError(ValueError):
    """A SPEC that does not lead to a logits processor; the message says what to write instead."""

    def __init__(self, spec: str, problem: str) -> None:
        super().__init__(f"logits_processors: {spec!r} {problem}")


class RequestArgsError(ValueError):
    """A part of a request that no declared processor accepts; `path` is its JSON path, None if it has none."""

    def __init__(self, path: str | None, reason: str) -> None:
        super().__init__(reason if path is None else f"{path}: {reason}")
        self.path = path
        self.reason = reason


# Characters of an error's text that reach logs, counters and clients.
MAX_TEXT = 2000


class EscapedError(Exception):
    """A processor raised an exception that would have ended the process: SystemExit, a cancellation, a panic."""


class DeviceMemoryError(Exception):
    """The device had too little memory for a processor's call, which need not be the processor's doing."""


class DeviceLostError(BaseException):
    """The device failed and no call of this process reaches it any more.

    CUDA reports such an error in whatever call comes next. So it is no Exception: nothing that handles a processor's
    faults takes it for one, and the worker ends.
    """


def without_device_failures(error: Exception) -> Exception:
    """Returns the exception of a call, or a DeviceMemoryError if it reports that the device's memory is full.

    Raises DeviceLostError if it reports that the device is lost.
    """
    failure = current_platform().failure_of(error)
    if failure is DeviceFailure.LOST:
        raise DeviceLostError(f"the device is lost: {described(error)}") from error
    if failure is DeviceFailure.OUT_OF_MEMORY:
        return DeviceMemoryError(f"the device's memory is full: {described(error)}")
    return error


def contained(error: BaseException) -> Exception:
    """Returns `error`, or an EscapedError that names it if it is not an Exception.

    Raises `error` itself if it may be a user's interrupt at the terminal, which Python raises in the main thread
    unless another handler is set. A worker ignores SIGINT and a server handles it, so there the processor raised it.
    """
    if isinstance(error, Exception):
        return error
    if isinstance(error, KeyboardInterrupt) and _interrupts_are_raised_here():
        raise error
    return EscapedError(f"it raised {described(error)}, which is no Exception")


def _interrupts_are_raised_here() -> bool:
    in_main_thread = threading.current_thread() is threading.main_thread()
    return in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def described(error: BaseException) -> str:
    """Returns the type and text of an exception as bounded, valid Unicode; never raises."""
    return f"{type(error).__name__}: {printed(error)}"


def printed(error: BaseException) -> str:
    """Returns the text of an exception as bounded, valid Unicode; never raises."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - a processor's exception may fail to print, too
        return "it cannot be printed"
    text = text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"
    return text.encode("utf-8", "replace").decode()


def loggable(error: BaseException | None) -> BaseException | None:
    """Returns an exception for the log, with the same name and the text of `printed`; None for None.

    It takes over the traceback: a processor may raise one instance again, which would add to it each time.
    """
    if error is None:
        return None
    kind = type(error)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    copy: BaseException = type(kind.__name__, (Exception,), names)(printed(error))
    copy.__traceback__, error.__traceback__ = error.__traceback__, None
    return copy
