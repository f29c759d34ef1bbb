"""Index of a growing text by its last tokens."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

NOWHERE = -1
# Earlier positions that are compared for the longest match.
MAX_CANDIDATES = 8
_FIRST_SIZE = 256
_FACTOR = 0x9E3779B1


class TokenIndex:
    """Finds the longest earlier occurrence of a text's last tokens, in constant time for each token.

    Positions whose last `shortest` tokens have the same hash form a chain, newest first. A token takes 16 to 40 bytes:
    4 for itself, 4 for its chain, and 2 to 8 entries of the table, which are 4 bytes each.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self._shortest = shortest
        self._longest = longest
        self._tokens = array("i")
        self._before = array("i")
        self._newest = array("i", [NOWHERE]) * _FIRST_SIZE
        self._mask = _FIRST_SIZE - 1

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def num_bytes(self) -> int:
        """Bytes of memory."""
        return sum(each.buffer_info()[1] * each.itemsize for each in (self._tokens, self._before, self._newest))

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends tokens to the text."""
        known = len(self._tokens)
        self._tokens.extend(tokens)
        if 2 * len(self._tokens) > self._mask:
            self._widen()
            known = 0
        text, before, newest = self._tokens, self._before, self._newest
        for position in range(known, len(text)):
            value = 0
            for token in text[max(position + 1 - self._shortest, 0) : position + 1]:
                value = (value * 31 + token + 1) * _FACTOR
            place = (value >> 15) & self._mask
            before.append(newest[place])
            if position + 1 >= self._shortest:
                newest[place] = position

    def match(self) -> tuple[int, int]:
        """Returns the last position of the longest earlier match of the text's end, and its length; 0 if none is.

        Of matches of equal length the newest counts. Lengths end at `longest`.
        """
        end = len(self._tokens) - 1
        best, length = NOWHERE, 0
        if end < self._shortest:
            return best, length
        candidate = self._before[end]
        for _ in range(MAX_CANDIDATES):
            if candidate == NOWHERE:
                break
            common = self._common(candidate, end)
            if common > length:
                best, length = candidate, common
                if length == self._longest:
                    break
            candidate = self._before[candidate]
        return (best, length) if length >= self._shortest else (NOWHERE, 0)

    def after(self, position: int, count: int) -> list[int]:
        """Returns `count` tokens after a position; at the text's end it repeats with the period of the match."""
        found = self._tokens[position + 1 : position + 1 + count].tolist()
        period = len(self._tokens) - 1 - position
        while len(found) < count:
            found.append(found[-period])
        return found

    def _common(self, one: int, other: int) -> int:
        """Returns how many tokens up to two positions are equal, at most `longest`."""
        tokens, most = self._tokens, min(self._longest, one + 1)
        for length in range(most):
            if tokens[one - length] != tokens[other - length]:
                return length
        return most

    def _widen(self) -> None:
        """Clears chains and table, which becomes large enough."""
        self._mask = (1 << (4 * len(self._tokens)).bit_length()) - 1
        self._newest = array("i", [NOWHERE]) * (self._mask + 1)
        self._before = array("i")
