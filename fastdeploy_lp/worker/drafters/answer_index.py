"""Index of the answers of many requests by the last tokens of a text, in memory of fixed size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from secrets import token_bytes

import numpy as np
from numpy.typing import NDArray

# Earlier positions that are compared for the longest match.
MAX_CANDIDATES = 8
# No token has this id.
ENDS = -1
# An entry of a chain that names no position: the first token of the ring is never replaced.
NOWHERE = 0
_WORD = (1 << 64) - 1
_BASE, _FACTOR = 0x100000001B3, 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of an answer to an owner, and tokens before them that a match may include. len: its tokens in the ring."""

    owner: int
    before: list[int]
    tokens: list[int]

    def __len__(self) -> int:
        return len(self.before) + len(self.tokens) + 1


@dataclass(frozen=True, slots=True)
class Continuation:
    """Tokens that followed the longest match of a text's end, and the match's length."""

    tokens: list[int]
    length: int


class AnswerIndex:
    """Finds what followed a text's last tokens in the answers to one owner, in constant time for each token.

    Answers are kept in a ring of `capacity` tokens: a new one replaces the oldest. The ring and its tables take at most
    48 bytes a token, and never grow. Source of the idea: Oliaro et al., "SuffixDecoding", 2024, which keeps a tree.

    shortest, longest: tokens of the shortest match, and tokens beyond which a longer one says no more.
    """

    def __init__(self, capacity: int, shortest: int, longest: int) -> None:
        self._longest = longest
        # Zeros take no memory before something else is written.
        self._tokens = np.zeros(capacity + 1, np.int32)
        self._owners = np.zeros(capacity + 1, np.int64)
        self._tokens[NOWHERE] = ENDS
        lengths = sorted({shortest, (shortest + longest) // 2, longest}, reverse=True)
        self._chains = [Chains(length, capacity) for length in lengths]
        self._next = NOWHERE + 1
        self._secret = token_bytes(16)

    @property
    def num_bytes(self) -> int:
        """Bytes of memory once the ring is full."""
        return self._tokens.nbytes + self._owners.nbytes + sum(each.num_bytes for each in self._chains)

    def owner(self, name: str) -> int:
        """Returns the number of an owner, int64. No names can be chosen so that their numbers are equal."""
        digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8, key=self._secret).digest()
        return int.from_bytes(digest, "little", signed=True)

    def add(self, pieces: Sequence[Piece]) -> None:
        """Stores pieces of answers, which the ring must have room for together. Takes time for each token."""
        text = np.array([token for piece in pieces for token in (*piece.before, *piece.tokens, ENDS)], np.int32)
        if self._next + len(text) > len(self._tokens):
            self._next = NOWHERE + 1
        begin, end = self._next, self._next + len(text)
        self._next = end
        sizes = [len(piece) for piece in pieces]
        owners = np.repeat(np.array([piece.owner for piece in pieces], np.int64), sizes)
        self._tokens[begin:end], self._owners[begin:end] = text, owners
        # A draft may begin after the last token before a piece, and after each of the piece's tokens but the last.
        places = np.arange(len(text)) - np.repeat(np.cumsum(sizes, dtype=np.int64) - sizes, sizes)
        least = np.repeat([len(piece.before) - 1 for piece in pieces], sizes)
        followed = (places >= least) & (places < np.repeat(sizes, sizes) - 2)
        for chains in self._chains:
            chains.add(owners, text, np.flatnonzero(followed & (places >= chains.length - 1)), begin)

    def find(self, owner: int, text: Sequence[int], count: int) -> Continuation | None:
        """Returns at most `count` tokens that followed the longest match of the text's last tokens; None without any.

        Of several matches of this length, the token that most often comes next counts, one after the other.
        """
        ends = np.array(text[max(len(text) - self._longest, 0) :], np.int32)
        for chains in self._chains:
            if chains.length > len(ends):
                continue
            lengths = {place: self._common(place, owner, ends) for place in chains.candidates(owner, ends)}
            most = max(lengths.values(), default=0)
            if most >= chains.length:
                tokens = _most_frequent([self._after(place, count) for place in lengths if lengths[place] == most])
                return Continuation(tokens, most) if tokens else None
        return None

    def _common(self, place: int, owner: int, ends: NDArray[np.int32]) -> int:
        """Returns how many tokens up to a place are the text's last ones; 0 for another owner's."""
        if self._owners[place] != owner:
            return 0
        count = min(place + 1, len(ends))
        equal = self._tokens[place + 1 - count : place + 1] == ends[len(ends) - count :]
        return count if equal.all() else int(equal[::-1].argmin())

    def _after(self, place: int, count: int) -> list[int]:
        found: list[int] = self._tokens[place + 1 : place + 1 + count].tolist()
        return found[: found.index(ENDS)] if ENDS in found else found


class Chains:
    """Positions with the same hash of their owner and their last `length` tokens, newest first.

    An entry outlives its text: a caller compares the tokens.
    """

    def __init__(self, length: int, capacity: int) -> None:
        self.length = length
        size_bits = capacity.bit_length()
        self._before = np.zeros(capacity + 1, np.int32)
        self._newest = np.zeros(1 << size_bits, np.int32)
        self._shift = 64 - size_bits

    @property
    def num_bytes(self) -> int:
        """Bytes of memory."""
        return self._before.nbytes + self._newest.nbytes

    def add(self, owners: NDArray[np.int64], text: NDArray[np.int32], positions: NDArray[np.int64], begin: int) -> None:
        """Adds positions of a text, ascending; `begin` is where the text begins in the ring."""
        if not positions.size:
            return
        hashes, tokens = owners[positions].astype(np.uint64), text.astype(np.uint64)
        for back in range(self.length - 1, -1, -1):
            hashes = hashes * np.uint64(_BASE) + tokens[positions - back]
        entries = (hashes * np.uint64(_FACTOR)) >> np.uint64(self._shift)
        # Positions of one entry become a run, in their order.
        order = np.argsort(entries, kind="stable")
        entries, places = entries[order], (positions[order] + begin).astype(np.int32)
        is_oldest = np.append(True, entries[1:] != entries[:-1])
        before = np.append(np.int32(NOWHERE), places[:-1])
        before[is_oldest] = self._newest[entries[is_oldest]]
        self._before[places] = before
        is_newest = np.append(is_oldest[1:], True)
        self._newest[entries[is_newest]] = places[is_newest]

    def candidates(self, owner: int, ends: NDArray[np.int32]) -> list[int]:
        """Returns the newest positions after which a text with these last tokens may continue."""
        value = owner & _WORD
        for token in ends[len(ends) - self.length :].tolist():
            value = (value * _BASE + token) & _WORD
        found: list[int] = []
        place = int(self._newest[((value * _FACTOR) & _WORD) >> self._shift])
        while place != NOWHERE and len(found) < MAX_CANDIDATES:
            found.append(place)
            place = int(self._before[place])
        return found


def _most_frequent(texts: list[list[int]]) -> list[int]:
    """Returns the beginning that most texts share, token by token; of equally many, the first text's."""
    if len(texts) == 1:
        return texts[0]
    found: list[int] = []
    while texts := [each for each in texts if len(each) > len(found)]:
        place = len(found)
        token, _ = Counter(each[place] for each in texts).most_common(1)[0]
        found.append(token)
        texts = [each for each in texts if each[place] == token]
    return found
