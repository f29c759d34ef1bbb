"""Which values an argument may have to reach the worker: those of JSON."""

from __future__ import annotations

from collections.abc import Iterable

from fastdeploy_lp.logits_processor.errors import RequestArgsError

MAX_DEPTH = 32


def require_sendable(value: object, path: str, depth: int = 0) -> None:
    """Raise RequestArgsError with the JSON path of the first part that cannot be sent."""
    if depth > MAX_DEPTH:
        raise RequestArgsError(path, f"nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        _require_all(value.items(), path, depth)
        for key in value:
            require_sendable(key, path, depth + 1)
    elif isinstance(value, (list, tuple)):
        _require_all(enumerate(value), path, depth)
    elif isinstance(value, str):
        _require_unicode(value, path)
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise RequestArgsError(path, "an integer of more than 64 bits")
    elif value is not None and type(value) not in (bool, int, float):
        raise RequestArgsError(path, f"{type(value).__name__} is no JSON value")


def _require_all(items: Iterable[tuple[object, object]], path: str, depth: int) -> None:
    for key, value in items:
        require_sendable(value, f"{path}.{key}", depth + 1)


def _require_unicode(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestArgsError(path, f"no valid Unicode: {error.reason}") from None
