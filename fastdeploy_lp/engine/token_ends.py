"""End positions of tokens in their text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from fastdeploy_lp.engine.tokenizer import TokenDecoder


class TokenEnds:
    """Tracks the text positions where a completion's tokens end."""

    def __init__(self, decoder: TokenDecoder) -> None:
        self._decoder = decoder
        self._ends: list[int] = []

    def extend(self, token_ids: Iterable[int]) -> None:
        """Adds the next tokens."""
        end = self._ends[-1] if self._ends else 0
        for token in token_ids:
            end += len(self._decoder.push(token))
            self._ends.append(end)

    def count_before(self, length: int) -> int:
        """Returns the number of tokens that produced the first `length` characters."""
        return min(bisect_left(self._ends, length) + 1, len(self._ends)) if length else 0
