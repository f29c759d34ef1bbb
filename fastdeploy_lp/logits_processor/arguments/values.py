"""Values of arguments: conversion by a `Params` model, and a check that they can be sent to the worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from fastdeploy_lp.logits_processor.errors import RequestArgsError, contained, described
from fastdeploy_lp.request.limits import MAX_ARGUMENT_DEPTH, MAX_ARGUMENT_VALUES


def settled_args(
    model: type[BaseModel],
    args: dict[str, Any],
    context: dict[str, Any],
    prefix: tuple[str, ...],
    paths: Mapping[str, tuple[str, ...]] | None = None,
) -> dict[str, Any]:
    """Returns the arguments as `model` reads them.

    Raises RequestArgsError with the argument's path in `paths`, or else with `prefix` and its name.
    """
    try:
        checked = model.model_validate(args, context=context)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        location = [str(part) for part in first["loc"] if part != "[key]"] or [next(iter(args), "")]
        path = (paths or {}).get(location[0], (*prefix, location[0]))
        where = ".".join((*path, *location[1:]))
        raise RequestArgsError(where, first["msg"].removeprefix("Value error, ")) from None
    except BaseException as error:  # pydantic passes on exceptions of an author's validator
        raise RequestArgsError(".".join(prefix), described(contained(error))) from error
    settled: dict[str, Any] = checked.model_dump(by_alias=True, exclude_unset=True)
    # A validated default, such as a phrase, differs from the author's value: the worker gets it as well.
    read = {name for name, field in model.model_fields.items() if field.validate_default}
    return settled | checked.model_dump(by_alias=True, include=read)


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
