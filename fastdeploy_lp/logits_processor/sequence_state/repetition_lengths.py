"""How long the repetition is that each token would go on with."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]


class RepetitionLengths:
    """For every place in prompt and live output: how many tokens up to it are the same as the text's last ones.

    A breaker ends such a run: none holds one. With `window` above 0 only so many last tokens are looked at. A step
    costs what the places of the text's last token are, not how long the text is.
    """

    def __init__(self, prompt: Sequence[int], output: Sequence[int], breakers: Collection[int], window: int) -> None:
        self._output, self._seen = output, 0
        self._breakers, self._window = frozenset(breakers), window
        self._text = list(prompt)
        self._places: dict[int, list[int]] = {}
        for place, token in enumerate(self._text):
            self._places.setdefault(token, []).append(place)
        # By place; those of at least one token, and not the end of the text itself.
        self._runs = self._count_runs()

    def continuations(self, at_least: int) -> tuple[Int64s, Int64s]:
        """Distinct tokens that go on with a repetition of at least so many tokens (1 or more), and its length."""
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
        """A run up to a place that holds the token is one longer than the run up to the place before was."""
        places = self._places.setdefault(token, [])
        before = self._runs
        self._runs = {} if token in self._breakers else {place: before.get(place - 1, 0) + 1 for place in places}
        places.append(len(self._text))
        self._text.append(token)

    def _count_runs(self) -> dict[int, int]:
        """Of a whole text at once: places drop out where going back from them meets another token than from its end."""
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
