"""The entries of a request's `logits_processors`, in either of its two forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fastdeploy_lp.logits_processor.errors import RequestArgsError

NAMED = "logits_processors"


class NamedEntry(NamedTuple):
    """One named processor of a request, with the JSON paths of the entry, its name and its params."""

    name: str
    params: dict[str, Any]
    path: tuple[str, ...]
    name_path: tuple[str, ...]
    params_path: tuple[str, ...]
    shadow: bool = False


def named_entries(chosen: Mapping[str, Any] | Sequence[Any]) -> list[NamedEntry]:
    """Returns the entries of either form; raises RequestArgsError for a wrong shape."""
    if isinstance(chosen, Mapping):
        paths = [(NAMED, str(name)) for name in chosen]
        items = zip(chosen.items(), paths, strict=True)
        entries = [NamedEntry(name, params, path, path, path) for (name, params), path in items]
    else:
        entries = [_list_entry(entry, index) for index, entry in enumerate(chosen)]
    for entry in entries:
        if not isinstance(entry.name, str):
            raise RequestArgsError(".".join(entry.name_path), "processor names are strings")
        if not isinstance(entry.params, dict):
            kind = type(entry.params).__name__
            raise RequestArgsError(".".join(entry.params_path), f"must be an object of arguments, not {kind}")
    return entries


def _list_entry(entry: Any, index: int) -> NamedEntry:
    path = (NAMED, str(index))
    if not isinstance(entry, Mapping) or "name" not in entry:
        raise RequestArgsError(".".join(path), 'must read {"name": "…", "params": {…}}')
    for key in entry:
        if key not in ("name", "params", "shadow"):
            raise RequestArgsError(".".join((*path, str(key))), "is unknown here; an entry has name, params and shadow")
    shadow = entry.get("shadow")
    if not isinstance(shadow, bool | None):
        raise RequestArgsError(".".join((*path, "shadow")), f"must be true or false, not {shadow!r}")
    params = {} if entry.get("params") is None else entry["params"]
    return NamedEntry(entry["name"], params, path, (*path, "name"), (*path, "params"), bool(shadow))
