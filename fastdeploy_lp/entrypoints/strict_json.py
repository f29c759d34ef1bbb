"""A JSON parser that refuses duplicate keys."""

from __future__ import annotations

import json
from typing import Any


class DuplicateKeyError(ValueError):
    """An object has a duplicate key; `path` is the JSON path of its second occurrence."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: this key is given twice")
        self.path = path
        self.reason = "this key is given twice"


def load(text: str | bytes) -> Any:
    """Returns the parsed text; raises DuplicateKeyError, or the exceptions of `json.loads`."""
    try:
        return json.loads(text, object_pairs_hook=members_once)
    except KeyTwiceError:
        raise duplicate_key(text) from None


def duplicate_key(text: str | bytes) -> DuplicateKeyError:
    """Returns the error for a text with a duplicate key; parses the text again to find the key's path."""
    return DuplicateKeyError(_path(json.loads(text, object_pairs_hook=_Pairs)))


class KeyTwiceError(Exception):
    """An object in the text has a duplicate key, at an unknown path."""


class _Pairs(list[tuple[str, Any]]):
    """The members of an object as written, duplicates included."""


def members_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the members as a dict; raises KeyTwiceError for a duplicate key."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise KeyTwiceError
    return members


def _path(content: Any) -> str:
    """Returns the path of the first duplicate key."""
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
