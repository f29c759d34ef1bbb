"""Tokens of a sequence, with the number of times it generated each: the input of penalties."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]


class TokenCounts:
    """The distinct tokens of a prompt and of the live list of output tokens; follows the list's growth."""

    def __init__(self, prompt_token_ids: Sequence[int], output_token_ids: Sequence[int]) -> None:
        self._output = output_token_ids
        self._seen = 0
        distinct = np.unique(np.asarray(prompt_token_ids, np.int64))
        self._places = {token: place for place, token in enumerate(distinct.tolist())}
        self._tokens = np.concatenate([distinct, np.empty(64, np.int64)])
        self._counts = np.zeros(len(self._tokens), np.int64)

    def catch_up(self) -> tuple[Int64s, Int64s]:
        """Returns the distinct tokens and how often each was generated so far (0: only the prompt holds it).

        Both are views [tokens] that the next call may change.
        """
        for token in self._output[self._seen :]:
            place = self._places.setdefault(token, len(self._places))
            if place == len(self._tokens):
                self._double()
            self._tokens[place] = token
            self._counts[place] += 1
        self._seen = len(self._output)
        count = len(self._places)
        return self._tokens[:count], self._counts[:count]

    def _double(self) -> None:
        self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
        self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
