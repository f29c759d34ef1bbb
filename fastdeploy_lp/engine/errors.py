"""Errors of the engine and of requests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar


class EngineStartError(RuntimeError):
    """The worker did not start; the message is the reason in one line."""


class EngineStartingError(RuntimeError):
    """The worker is not ready yet; retry later."""


class EngineDeadError(RuntimeError):
    """The worker is gone; this and every other request in flight ended with it."""


class RequestFailedError(RuntimeError):
    """This request failed; others are not affected."""


class EngineRestartingError(RuntimeError):
    """A new worker is replacing one that ended; new requests wait for it."""


class EngineDrainingError(RuntimeError):
    """The engine completes its requests and accepts no more."""


class WorkerLostError(RequestFailedError):
    """The worker ended while this request ran, and the request does not run again."""


class RequestTimeoutError(RequestFailedError):
    """The request's deadline has passed."""


class RequestImpossibleError(RequestFailedError):
    """The request turned out to be impossible while it ran; retrying is useless."""


class RequestAbortedError(RequestFailedError):
    """The request was aborted and has no output."""


class IOProcessorError(RequestFailedError):
    """The IO processor failed on this request; the message names it, and the log has the cause."""


class QueueFullError(RuntimeError):
    """The operator's limit of running and waiting sequences is reached; retry in `retry_after` seconds."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ProcessorUnavailableError(RequestFailedError):
    """The request uses a logits processor that is in quarantine."""


class InvalidRequestError(ValueError):
    """The request is invalid; `param` is the JSON path of the invalid field."""

    def __init__(self, param: str | None, reason: str, code: str = "invalid_value") -> None:
        super().__init__(f"{param}: {reason}" if param else reason)
        self.param = param
        self.reason = reason
        self.code = code


UNNAMED_FAULT = "a logits processor of this server failed"
Ended = TypeVar("Ended", EngineDeadError, RequestFailedError, EngineDeadError | RequestFailedError)


def discreet(error: Ended, secret: Sequence[str]) -> Ended:
    """Returns the error without its reason if that names a processor of which the client must not learn.

    Every message of a processor's fault has the name after "logits processor".
    """
    names = "|".join(map(re.escape, secret))
    if not names or not re.search(rf"logits processor ({names})(?!\w)", str(error)):
        return error
    return type(error)(UNNAMED_FAULT)
