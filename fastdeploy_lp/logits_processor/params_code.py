"""Detection of an author's own code in a `Params` model, by the schema that pydantic built from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

# Packages whose functions in a schema are not an author's code.
_OURS = ("fastdeploy_lp", "pydantic", "pydantic_core")


def runs_authors_code(model: type[BaseModel]) -> bool:
    """Returns True if validation or dumping calls code outside pydantic and this package: functions, hooks, methods.

    Regular expressions of Python's `re` count as well: their run time has no bound.
    """
    own_bases = model.__mro__[: model.__mro__.index(BaseModel)]
    if any(name in vars(base) for base in own_bases for name in ("model_validate", "model_dump")):
        return True
    return any(_is_code(node) for node in _nodes(model.__pydantic_core_schema__, set()))


def _nodes(part: Any, seen: set[int]) -> Iterator[Mapping[str, Any]]:
    """Yields every mapping of a schema, each once."""
    if isinstance(part, Mapping):
        if id(part) in seen:
            return
        seen.add(id(part))
        yield part
        part = tuple(part.values())
    if isinstance(part, list | tuple):
        for value in part:
            yield from _nodes(value, seen)


def _is_code(node: Mapping[str, Any]) -> bool:
    if node.get("custom_init") or node.get("post_init") or node.get("computed_fields"):
        return True
    if node.get("regex_engine") == "python-re":
        return True
    return any(callable(value) and _may_be_code(key, value) and not _is_ours(value) for key, value in node.items())


def _may_be_code(key: str, value: Any) -> bool:
    """Returns True for a function, and for a class that is called; other classes in a schema are value types."""
    return key in ("function", "missing") or not isinstance(value, type)


def _is_ours(function: Any) -> bool:
    module = getattr(function, "__module__", None) or ""
    return module.partition(".")[0] in _OURS
