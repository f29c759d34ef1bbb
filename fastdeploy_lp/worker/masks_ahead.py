"""Masks of a draft's rows, computed before it is known which draft tokens are right."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.guided_decoding.compiler import allows
from fastdeploy_lp.guided_decoding.phased_matcher import Matcher


class MasksAhead:
    """Walks a copy of a sequence's matcher along a draft; a call of the grammar library's threads.

    bits: int32 [1 + draft tokens, words]. Row i is the mask of the token after i draft tokens; row 0, of the next one,
    is known before. known: the number of rows that were found so far. A draft token that may not come, or that ends the
    text, has no row after it. ready: no further row will be found. client, working, slow: see `Work`.
    matcher: None finds no further row.
    """

    def __init__(
        self,
        matcher: Matcher | None,
        first: NDArray[np.int32],
        draft: Sequence[int],
        ends: Collection[int],
        client: str,
    ) -> None:
        self.bits = np.empty((1 + len(draft), len(first)), np.int32)
        self.bits[0] = first
        self.known = 1
        self.client = client
        self.slow = False
        self.ready = matcher is None
        self.working: threading.Thread | None = None
        self._matcher = matcher
        self._draft = draft
        self._ends = ends

    def fill(self) -> None:
        """Computes the masks, up to a token that is not allowed or ends the text."""
        if self._matcher is not None:
            self._walk(self._matcher)
        self.ready = True

    def _walk(self, matcher: Matcher) -> None:
        # The sequence's own matcher meets the error, if the sequence comes to this token.
        with suppress(BaseException):
            for row, token in enumerate(self._draft, 1):
                if token in self._ends or not allows(self.bits[row - 1], token):
                    return
                matcher.consume([token])
                if matcher.is_complete:
                    return
                matcher.fill(self.bits[row])
                self.known = row + 1

    def fail(self, error: BaseException) -> None:
        """Does nothing: the sequence continues without the missing masks."""
