"""How long the repetition is that each token would go on with."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]


class RepetitionLengths:
    """For every place in prompt and live output: how many tokens up to it are the same as the text's last ones.

    A breaker ends such a run: none holds one. With `window` above 0 only so many last tokens are looked at.
    """

    def __init__(self, prompt: Sequence[int], output: Sequence[int], breakers: Collection[int], window: int) -> None:
        self._output = output
        self._breakers = frozenset(breakers)
        self._window = window
        self._seen, self._length = 0, len(prompt)
        self._tokens = np.empty(max(64, 2 * len(prompt)), np.int64)
        self._tokens[: len(prompt)] = prompt
        self._runs = np.zeros_like(self._tokens)
        self._count_runs()

    def continuations(self, at_least: int) -> tuple[Int64s, Int64s]:
        """Distinct tokens that go on with a repetition of at least so many tokens (1 or more), and its length."""
        for token in self._output[self._seen :]:
            self._take(token)
        self._seen = len(self._output)
        begin = max(0, self._length - self._window) if self._window else 0
        # The last place is the end of the text itself, behind which nothing stands yet.
        runs = self._runs[begin : self._length - 1]
        if self._window:
            runs = np.minimum(runs, np.arange(1, len(runs) + 1))
        long = np.flatnonzero(runs >= at_least)
        if not long.size:
            return long, long
        tokens, place = np.unique(self._tokens[begin + long + 1], return_inverse=True)
        longest = np.zeros(len(tokens), np.int64)
        np.maximum.at(longest, place.reshape(-1), runs[long])
        return tokens, longest

    def _count_runs(self) -> None:
        """Of a whole text at once: places drop out where going back from them meets another token than from its end."""
        last, back = self._length - 1, 0
        places = np.arange(last)
        while places.size and int(self._tokens[last - back]) not in self._breakers:
            places = places[places >= back]
            places = places[self._tokens[places - back] == self._tokens[last - back]]
            self._runs[places] += 1
            back += 1

    def _take(self, token: int) -> None:
        """Take in one more token, at a cost that does not depend on how long the repetitions are."""
        if self._length == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
            self._runs = np.concatenate([self._runs, np.zeros_like(self._runs)])
        end = self._length
        self._tokens[end] = token
        self._length += 1
        if token in self._breakers:
            self._runs[: self._length] = 0
            return
        # A run up to a place that holds the token is one longer than the run up to the place before was.
        before = self._runs[:end].copy()
        self._runs[: self._length] = 0
        places = np.flatnonzero(self._tokens[:end] == token)
        self._runs[places] = 1
        later = places[places > 0]
        self._runs[later] += before[later - 1]
