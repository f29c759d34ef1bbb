"""Index of a growing text by its last tokens."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence

NOWHERE = -1
# Earlier positions that are compared for the longest match.
MAX_CANDIDATES = 16
# A match of so many tokens is looked for before that of the last token alone, which occurs at many places.
PAIR = 2
# Tokens that the first tables are large enough for.
_FIRST_TOKENS = 32


class TokenIndex:
    """Finds the longest earlier occurrence of a text's last tokens, in constant time for each token.

    Positions whose last two tokens (or `shortest` ones, if these are more) have the same hash form a chain, newest
    first; if `shortest` is 1, those with the same last token form another one. A token takes 4 bytes for itself, 4 for
    each of its chains and 2 to 8 entries of 4 bytes in each table: 16 to 76 bytes.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self._shortest = shortest
        self._longest = longest
        self._linked = max(shortest, min(PAIR, longest))
        self._tokens = array("i")
        self._runs = _Chains()
        self._singles = _Chains() if shortest < self._linked else None

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def num_bytes(self) -> int:
        """Bytes of memory."""
        arrays = [self._tokens]
        for chains in filter(None, (self._runs, self._singles)):
            arrays += [chains.before, chains.newest]
        return sum(each.buffer_info()[1] * each.itemsize for each in arrays)

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends tokens to the text."""
        text, runs, singles, linked = self._tokens, self._runs, self._singles, self._linked
        text.extend(tokens)
        if 2 * len(text) > runs.mask:
            runs.widen(len(text))
            if singles is not None:
                singles.widen(len(text))
        mask = runs.mask
        for position in range(len(runs.before), len(text)):
            if singles is not None:
                place = hash((text[position],)) & mask
                singles.before.append(singles.newest[place])
                singles.newest[place] = position
            if position + 1 < linked:
                runs.before.append(NOWHERE)
                continue
            place = hash(tuple(text[position - linked + 1 : position + 1])) & mask
            runs.before.append(runs.newest[place])
            runs.newest[place] = position

    def match(self, follows: Callable[[int], bool] | None = None) -> tuple[int, int]:
        """Returns the last position of the longest earlier match of the text's end, and its length; 0 if none is.

        Of matches of equal length the newest counts. Lengths end at `longest`. follows: returns True for tokens that
        may be next; other matches do not count.
        """
        position, length = self._longest_in(self._runs.before, self._longest, follows)
        if length < self._linked and self._singles is not None:
            position, length = self._longest_in(self._singles.before, self._shortest, follows)
        return (position, length) if length >= self._shortest else (NOWHERE, 0)

    def after(self, position: int, count: int) -> list[int]:
        """Returns `count` tokens after a position; at the text's end it repeats with the period of the match."""
        found = self._tokens[position + 1 : position + 1 + count].tolist()
        period = len(self._tokens) - 1 - position
        while len(found) < count:
            found.append(found[-period])
        return found

    def _longest_in(
        self, before: Sequence[int], longest: int, follows: Callable[[int], bool] | None
    ) -> tuple[int, int]:
        """Returns the position and length of the longest match in a chain; 0 if none is."""
        text = self._tokens
        end = len(text) - 1
        best, length = NOWHERE, 0
        candidate = before[end] if end >= 0 else NOWHERE
        for _ in range(MAX_CANDIDATES):
            if candidate == NOWHERE:
                break
            # A longer match has an equal token there, which most candidates have not.
            if candidate >= length and text[candidate - length] == text[end - length]:
                common, most = 0, min(longest, candidate + 1)
                while common < most and text[candidate - common] == text[end - common]:
                    common += 1
                if common > length and (follows is None or follows(text[candidate + 1])):
                    best, length = candidate, common
                    if length == longest:
                        break
            candidate = before[candidate]
        return best, length


class _Chains:
    """Positions with the same hash. before: by position, the one before it in its chain. newest: the hash table."""

    __slots__ = ("before", "mask", "newest")

    def __init__(self) -> None:
        self.widen(_FIRST_TOKENS)

    def widen(self, tokens: int) -> None:
        """Clears chains and table, which becomes large enough."""
        self.mask = (1 << (4 * tokens).bit_length()) - 1
        self.newest = array("i", [NOWHERE]) * (self.mask + 1)
        self.before = array("i")
