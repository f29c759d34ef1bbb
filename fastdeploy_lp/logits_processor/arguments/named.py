"""The entries of a request's `logits_processors`, in either of its two forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from fastdeploy_lp.logits_processor.declared import DeclaredProcessor
from fastdeploy_lp.logits_processor.errors import RequestArgsError


class RequestedPlace(NamedTuple):
    """A name in a request's order, and its JSON path there."""

    name: str
    path: str


class MandatoryOrder:
    """Orders names as a request asks, with every mandatory processor between the names it was declared between."""

    def __init__(self, declared: Sequence[DeclaredProcessor]) -> None:
        self._mandatory = [processor.name for processor in declared if processor.mandatory]
        # Odd numbers for mandatory processors, even numbers for the processors before, between and after them.
        self._section: dict[str, int] = {}
        for processor in declared:
            passed = [name for name in self._mandatory if name in self._section]
            self._section[processor.name] = 2 * len(passed) + processor.mandatory

    def complete(self, requested: Sequence[RequestedPlace]) -> tuple[str, ...]:
        """Returns the requested order with the missing mandatory names added.

        Raises RequestArgsError for a name that was declared on the other side of a mandatory processor.
        """
        names = [place.name for place in requested]
        absent = [name for name in self._mandatory if name not in names]
        # Stable: names of one section stay as requested.
        allowed = tuple(sorted([*names, *absent], key=self._section.__getitem__))
        for before, after in pairwise(requested):
            if self._section[after.name] < self._section[before.name]:
                raise RequestArgsError(after.path, self._reason(before.name, after.name, allowed))
        return allowed

    def _reason(self, before: str, after: str, allowed: Sequence[str]) -> str:
        passed = self._mandatory[self._section[after] // 2]
        place = f"{passed} is mandatory and keeps its declared place"
        return f"{after} cannot run after {before}: {place}; an order that is allowed is {', '.join(allowed)}"


NAMED = "logits_processors"
KEYS = ("name", "params", "when", "shadow")


class NamedEntry(NamedTuple):
    """One named processor of a request, with the JSON paths of the entry, its name and its params.

    when: the part of the output in which it works, as it was sent; None for all of it.
    """

    name: str
    params: dict[str, Any]
    path: tuple[str, ...]
    name_path: tuple[str, ...]
    params_path: tuple[str, ...]
    shadow: bool = False
    when: Any = None

    @property
    def when_path(self) -> str:
        """JSON path of its phase."""
        return ".".join((*self.path, "when"))


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
        if key not in KEYS:
            reason = f"is unknown here; an entry has {', '.join(KEYS[:-1])} and {KEYS[-1]}"
            raise RequestArgsError(".".join((*path, str(key))), reason)
    shadow = entry.get("shadow")
    if not isinstance(shadow, bool | None):
        raise RequestArgsError(".".join((*path, "shadow")), f"must be true or false, not {shadow!r}")
    params = {} if entry.get("params") is None else entry["params"]
    return NamedEntry(entry["name"], params, path, (*path, "name"), (*path, "params"), bool(shadow), entry.get("when"))
