"""Token sequences that must not be generated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]


class BadWords:
    """Bans a sequence's last token while the output ends with the tokens before it."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self._single = np.array([word[0] for word in sequences if len(word) == 1], np.int64)
        # By the token that must be the output's last for the ban to apply, so that a step checks few of them.
        self._after: dict[int, list[tuple[list[int], int]]] = {}
        for word in sequences:
            if len(word) > 1:
                self._after.setdefault(word[-2], []).append((list(word[:-1]), word[-1]))

    def banned(self, output: Sequence[int]) -> Int64s:
        """Returns the tokens that would complete one of the sequences."""
        candidates = self._after.get(output[-1], ()) if output else ()
        completing = [last for beginning, last in candidates if list(output[-len(beginning) :]) == beginning]
        return np.concatenate([self._single, np.array(completing, np.int64)]) if completing else self._single
