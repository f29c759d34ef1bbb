"""The error of a request whose sequence the worker ended."""

from __future__ import annotations

from fastdeploy_lp.engine.errors import ProcessorUnavailableError, RequestFailedError, RequestImpossibleError
from fastdeploy_lp.messages import SequenceStep


def failure_of(step: SequenceStep) -> RequestFailedError:
    """Returns the error of the kind that the step reports."""
    kind: type[RequestFailedError] = RequestFailedError
    if step.unavailable:
        kind = ProcessorUnavailableError
    elif step.by_request:
        kind = RequestImpossibleError
    return kind(step.error or "the worker ended the sequence")
