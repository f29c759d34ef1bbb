"""What can go wrong between a request and its answer."""


class EngineStartError(RuntimeError):
    """The worker did not come up; the message says why in one line."""


class EngineStartingError(RuntimeError):
    """The worker is not ready yet; the same request will be taken later."""


class EngineDeadError(RuntimeError):
    """The worker is gone; this request, and every other one in flight, ended with it."""


class RequestFailedError(RuntimeError):
    """This request could not go on; others are not concerned."""


class EngineRestartingError(RuntimeError):
    """Another worker takes the place of one that has ended; requests that come meanwhile wait for it."""


class EngineDrainingError(RuntimeError):
    """The engine finishes what it has and takes no further requests."""


class WorkerLostError(RequestFailedError):
    """The worker ended while this request ran, and the request is not run again."""


class RequestTimeoutError(RequestFailedError):
    """The time that the request set itself has passed."""


class RequestImpossibleError(RequestFailedError):
    """What the request asks for cannot be done, as was found out while it ran; to send it again is of no use."""


class RequestAbortedError(RequestFailedError):
    """Somebody ended this request, and there is nothing to give of what it was to be."""


class IOProcessorError(RequestFailedError):
    """The IO processor failed at this request; the message names it, and the log has the cause."""


class QueueFullError(RuntimeError):
    """As many sequences run and wait as the operator allows; the same request may be taken in `retry_after` seconds."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ProcessorUnavailableError(RequestFailedError):
    """The request asked for a logits processor that is in quarantine."""


class InvalidRequestError(ValueError):
    """A request that cannot be served as it is; `param` is the JSON path of the field at fault."""

    def __init__(self, param: str | None, reason: str, code: str = "invalid_value") -> None:
        super().__init__(f"{param}: {reason}" if param else reason)
        self.param = param
        self.reason = reason
        self.code = code
