"""Tokens that would repeat a sequence of tokens in the text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class RepeatedNGrams:
    """Every run of `size - 1` tokens of prompt and live output, with the tokens that followed it."""

    def __init__(self, size: int, prompt: Sequence[int], output: Sequence[int]) -> None:
        self._size = size
        self._output = output
        # The last `size - 1` tokens read.
        self._tail: tuple[int, ...] = ()
        self._behind: dict[tuple[int, ...], dict[int, None]] = {}
        self._seen = 0
        self._take(prompt)

    def completing(self) -> NDArray[np.int64]:
        """Returns the tokens that would complete a run of `size` tokens for a second time, each once."""
        self._take(self._output[self._seen :])
        self._seen = len(self._output)
        if len(self._tail) < self._size - 1:
            return np.empty(0, np.int64)
        behind = self._behind.get(self._tail, {})
        return np.fromiter(behind, np.int64, len(behind))

    def _take(self, tokens: Sequence[int]) -> None:
        length = self._size - 1
        for token in tokens:
            if len(self._tail) == length:
                self._behind.setdefault(self._tail, {})[token] = None
            self._tail = (*self._tail, token)[-length:] if length else ()
