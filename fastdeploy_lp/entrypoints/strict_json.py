"""JSON in which no object has a key twice."""

from __future__ import annotations

import json
from typing import Any


class DuplicateKeyError(ValueError):
    """An object has a key twice; `path` is the JSON path of the second one."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: this key is given twice")
        self.path = path
        self.reason = "this key is given twice"


def load(text: str | bytes) -> Any:
    """The parsed text; raises DuplicateKeyError, or what `json.loads` raises."""
    try:
        return json.loads(text, object_pairs_hook=members_once)
    except KeyTwiceError:
        raise duplicate_key(text) from None


def duplicate_key(text: str | bytes) -> DuplicateKeyError:
    """The error for a text in which an object has a key twice: only now is it worth the time to find it."""
    return DuplicateKeyError(_path(json.loads(text, object_pairs_hook=_Pairs)))


class KeyTwiceError(Exception):
    """Somewhere in the text."""


class _Pairs(list[tuple[str, Any]]):
    """The members of an object as they were written."""


def members_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; raises KeyTwiceError."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise KeyTwiceError
    return members


def _path(content: Any) -> str:
    """The way to the first key that its object has already."""
    waiting: list[tuple[list[str], Any]] = [([], content)]
    while waiting:
        path, value = waiting.pop()
        seen: set[str] = set()
        inside: list[tuple[list[str], Any]] = []
        for key, member in value if isinstance(value, _Pairs) else enumerate(value):
            here = [*path, str(key)]
            if isinstance(value, _Pairs):
                if here[-1] in seen:
                    return ".".join(here)
                seen.add(here[-1])
            if isinstance(member, list):
                inside.append((here, member))
        waiting += reversed(inside)
    raise ValueError("no object has a key twice")
