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
        self._tokens.extend(tokens)
        if 2 * len(self._tokens) > self._mask:
            self._widen()
        text, before, newest, shortest = self._tokens, self._before, self._newest, self._shortest
        for position in range(len(before), len(text)):
            if position + 1 < shortest:
                before.append(NOWHERE)
                continue
            value = (text[position] + 1) * _FACTOR
            for earlier in range(1, shortest):
                value = (value * 31 + text[position - earlier] + 1) * _FACTOR
            place = (value >> 15) & self._mask
            before.append(newest[place])
            newest[place] = position

    def match(self) -> tuple[int, int]:
        """Returns the last position of the longest earlier match of the text's end, and its length; 0 if none is.

        Of matches of equal length the newest counts. Lengths end at `longest`.
        """
        tokens, before, longest = self._tokens, self._before, self._longest
        end = len(tokens) - 1
        best, length = NOWHERE, 0
        if end < self._shortest:
            return best, length
        candidate = before[end]
        for _ in range(MAX_CANDIDATES):
            if candidate == NOWHERE:
                break
            # A longer match has an equal token there, which most candidates have not.
            if candidate >= length and tokens[candidate - length] == tokens[end - length]:
                common, most = 0, min(longest, candidate + 1)
                while common < most and tokens[candidate - common] == tokens[end - common]:
                    common += 1
                if common > length:
                    best, length = candidate, common
                    if length == longest:
                        break
            candidate = before[candidate]
        return (best, length) if length >= self._shortest else (NOWHERE, 0)

    def after(self, position: int, count: int) -> list[int]:
        """Returns `count` tokens after a position; at the text's end it repeats with the period of the match."""
        found = self._tokens[position + 1 : position + 1 + count].tolist()
        period = len(self._tokens) - 1 - position
        while len(found) < count:
            found.append(found[-period])
        return found

    def _widen(self) -> None:
        """Clears chains and table, which becomes large enough."""
        self._mask = (1 << (4 * len(self._tokens)).bit_length()) - 1
        self._newest = array("i", [NOWHERE]) * (self._mask + 1)
        self._before = array("i")
