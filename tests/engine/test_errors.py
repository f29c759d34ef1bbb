"""Errors that leave out what a client must not learn."""

from __future__ import annotations

import pytest

from fastdeploy_lp.engine.errors import (
    UNNAMED_FAULT,
    EngineDeadError,
    ProcessorUnavailableError,
    RequestFailedError,
    WorkerLostError,
    discreet,
)


@pytest.mark.parametrize("kind", [EngineDeadError, ProcessorUnavailableError, RequestFailedError, WorkerLostError])
def test_a_secret_name_takes_the_reason_with_it(kind: type[RequestFailedError]) -> None:
    told = discreet(kind("logits processor Mask failed: ValueError: 42"), ("Other", "Mask"))
    assert (type(told), str(told)) == (kind, UNNAMED_FAULT)


@pytest.mark.parametrize(
    "message", ["logits processor Other failed", "logits processor Masked failed", "a Mask of bits"]
)
@pytest.mark.parametrize("secret", [("Mask",), ()])
def test_an_error_of_something_else_is_kept(message: str, secret: tuple[str, ...]) -> None:
    kept = RequestFailedError(message)
    assert discreet(kept, secret) is kept
