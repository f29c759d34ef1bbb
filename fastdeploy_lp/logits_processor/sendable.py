"""Check that an argument can be sent to the worker: it holds only JSON values, in a limited number."""

from __future__ import annotations

from collections.abc import Iterable

from fastdeploy_lp.logits_processor.errors import RequestArgsError
from fastdeploy_lp.request_limits import MAX_ARGUMENT_DEPTH, MAX_ARGUMENT_VALUES


def require_sendable(value: object, path: str) -> None:
    """Raises RequestArgsError with the JSON path of the first part that cannot be sent."""
    _Check(path).value(value, path, 0)


class _Check:
    """Checks and counts the values of one argument."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._left = MAX_ARGUMENT_VALUES

    def value(self, value: object, path: str, depth: int) -> None:
        self._left -= 1
        if self._left < 0:
            raise RequestArgsError(self._path, f"holds more than {MAX_ARGUMENT_VALUES} values")
        if depth > MAX_ARGUMENT_DEPTH:
            raise RequestArgsError(path, f"nested more than {MAX_ARGUMENT_DEPTH} levels deep")
        if isinstance(value, dict):
            self._all(value.items(), path, depth)
            for key in value:
                self.value(key, path, depth + 1)
        elif isinstance(value, (list, tuple)):
            self._all(enumerate(value), path, depth)
        elif isinstance(value, str):
            _require_unicode(value, path)
        elif isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise RequestArgsError(path, "an integer of more than 64 bits")
        elif value is not None and type(value) not in (bool, int, float):
            raise RequestArgsError(path, f"{type(value).__name__} is no JSON value")

    def _all(self, items: Iterable[tuple[object, object]], path: str, depth: int) -> None:
        for key, value in items:
            self.value(value, f"{path}.{key}", depth + 1)


def _require_unicode(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestArgsError(path, f"no valid Unicode: {error.reason}") from None
