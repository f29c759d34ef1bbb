"""Finds texts, each in several tokenizations, in a stream of tokens."""

from __future__ import annotations

from collections.abc import Sequence


class MarkerFinder:
    """Finds token lists at the end of a sequence; each further token costs one look-up."""

    def __init__(self, forms: Sequence[Sequence[int]]) -> None:
        self._by_last: dict[int, list[list[int]]] = {}
        for form in forms:
            self._by_last.setdefault(form[-1], []).append(list(form))
        self.longest = max(map(len, forms), default=0)
        self._forms = [list(form) for form in forms]

    def ends(self, tokens: Sequence[int], end: int, start: int = 0) -> bool:
        """Returns True if tokens[start:end] ends with one of the lists."""
        return any(
            end - len(form) >= start and list(tokens[end - len(form) : end]) == form
            for form in self._by_last.get(tokens[end - 1], ())
        )

    def rest(self, tokens: Sequence[int], end: int, start: int = 0) -> list[int] | None:
        """Returns the rest of the list whose longest prefix ends tokens[start:end], None if no prefix does."""
        for held in range(min(self.longest - 1, end - start), 0, -1):
            tail = list(tokens[end - held : end])
            for form in self._forms:
                if len(form) > held and form[:held] == tail:
                    return form[held:]
        return None
