"""The order of a request's chain, in which mandatory processors keep their declared places."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

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
