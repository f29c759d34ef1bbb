"""Where in a text the tokens that it came from end."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from fastdeploy_lp.engine.tokenizer import TokenDecoder


class TokenEnds:
    """Follows a completion's tokens."""

    def __init__(self, decoder: TokenDecoder) -> None:
        self._decoder = decoder
        self._ends: list[int] = []

    def extend(self, token_ids: Iterable[int]) -> None:
        """Take the tokens that come next."""
        end = self._ends[-1] if self._ends else 0
        for token in token_ids:
            end += len(self._decoder.push(token))
            self._ends.append(end)

    def count_before(self, length: int) -> int:
        """How many tokens the first `length` characters came from."""
        return min(bisect_left(self._ends, length) + 1, len(self._ends)) if length else 0
