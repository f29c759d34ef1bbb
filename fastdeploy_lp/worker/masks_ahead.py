"""Masks of a draft's rows, computed before it is known which draft tokens are right."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.guided_decoding.compiler import GrammarMatcher, allows


class MasksAhead:
    """Walks a copy of a sequence's matcher along a draft; a call of the grammar library's threads.

    bits: int32 [1 + draft tokens, words], valid once `ready`. Row i is the mask of the token after i draft tokens; row
    0, of the next token, is known. Rows that the draft cannot reach, and those without a mask, allow nothing.
    client, working, slow: see `Work`. matcher: None leaves all masks but the known one out.
    """

    def __init__(
        self,
        matcher: GrammarMatcher | None,
        known: NDArray[np.int32],
        draft: Sequence[int],
        ends: Collection[int],
        client: str,
    ) -> None:
        self.bits = np.zeros((1 + len(draft), len(known)), np.int32)
        self.bits[0] = known
        self.client = client
        self.slow = False
        self.ready = False
        self.working: threading.Thread | None = None
        self._matcher = matcher
        self._draft = draft
        self._ends = ends

    @property
    def known_bits(self) -> NDArray[np.int32]:
        """The masks if they are ready; else those of which none but the next token's is known."""
        return self.bits if self.ready else np.concatenate([self.bits[:1], np.zeros_like(self.bits[1:])])

    def fill(self) -> None:
        """Computes the masks, up to a token that is not allowed or ends the text."""
        if self._matcher is not None:
            self._walk(self._matcher)
        self.ready = True

    def _walk(self, matcher: GrammarMatcher) -> None:
        row = 0
        try:
            for row, token in enumerate(self._draft, 1):
                if token in self._ends or not allows(self.bits[row - 1], token):
                    return
                matcher.consume([token])
                if matcher.is_complete:
                    return
                matcher.fill(self.bits[row])
        except BaseException:  # noqa: BLE001 - the sequence's own matcher meets the error, if it comes to this token
            self.bits[row] = 0

    def fail(self, error: BaseException) -> None:
        """Gives the masks up: `ready` stays False, and the sequence goes on without them."""
