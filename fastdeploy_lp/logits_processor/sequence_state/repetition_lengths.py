"""Length of the repetition that each token would continue."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]


class RepetitionLengths:
    """For every place in prompt and live output: the number of tokens up to it that equal the text's last ones.

    A breaker ends such a run: no run holds one. With `window` above 0, only that many last tokens count. The cost of a
    step depends on the number of places of the text's last token, not on the text's length.
    """

    def __init__(self, prompt: Sequence[int], output: Sequence[int], breakers: Collection[int], window: int) -> None:
        self._output, self._seen = output, 0
        self._breakers, self._window = frozenset(breakers), window
        self._text = list(prompt)
        self._places: dict[int, list[int]] = {}
        for place, token in enumerate(self._text):
            self._places.setdefault(token, []).append(place)
        # By place; only runs of at least one token, without the end of the text itself.
        self._runs = self._count_runs()

    def continuations(self, at_least: int) -> tuple[Int64s, Int64s]:
        """Returns distinct tokens that continue a repetition of `at_least` tokens (1 or more), and its length."""
        for token in self._output[self._seen :]:
            self._take(token)
        self._seen = len(self._output)
        begin = max(0, len(self._text) - self._window) if self._window else 0
        longest: dict[int, int] = {}
        for place, run in self._runs.items():
            within = min(run, place - begin + 1)
            if within >= at_least:
                token = self._text[place + 1]
                longest[token] = max(longest.get(token, 0), within)
        count = len(longest)
        return np.fromiter(longest, np.int64, count), np.fromiter(longest.values(), np.int64, count)

    def _take(self, token: int) -> None:
        """Appends a token: a run up to its place is one longer than the old run up to the place before."""
        places = self._places.setdefault(token, [])
        before = self._runs
        self._runs = {} if token in self._breakers else {place: before.get(place - 1, 0) + 1 for place in places}
        places.append(len(self._text))
        self._text.append(token)

    def _count_runs(self) -> dict[int, int]:
        """Counts all runs of the text at once, backwards: a place drops out where its tokens differ from the end's."""
        runs: dict[int, int] = {}
        last = len(self._text) - 1
        places = self._places[self._text[last]][:-1] if self._text else []
        back = 0
        while places and self._text[last - back] not in self._breakers:
            for place in places:
                runs[place] = back + 1
            back += 1
            places = [
                place for place in places if place >= back and self._text[place - back] == self._text[last - back]
            ]
        return runs
