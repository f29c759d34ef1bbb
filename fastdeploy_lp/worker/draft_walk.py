"""Follows a draft through a grammar: where the draft leaves it, and the tokens that come there."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from contextlib import suppress

from fastdeploy_lp.guided_decoding.phased_matcher import Matcher
from fastdeploy_lp.worker.logits_mask import Followed


class DraftWalk:
    """Walks a copy of a sequence's matcher along a draft; a call of the grammar library's threads.

    found: None until it is known, and if the walk fails. client, ready, working, slow: see `Work`.
    """

    def __init__(self, matcher: Matcher, draft: Sequence[int], ends: Collection[int], client: str) -> None:
        self.found: Followed | None = None
        self.client = client
        self.ready = self.slow = False
        self.working: threading.Thread | None = None
        self._matcher = matcher
        self._draft = list(draft)
        self._ends = ends

    def fill(self) -> None:
        """Finds where the draft leaves the grammar, and what is forced there."""
        # The sequence's own matcher meets the error, if the sequence comes to this token.
        with suppress(BaseException):
            self.found = self._walk()
        self.ready = True

    def _walk(self) -> Followed:
        until_end = next((place for place, token in enumerate(self._draft) if token in self._ends), len(self._draft))
        allowed = self._matcher.follow(self._draft[:until_end])
        if allowed == until_end < len(self._draft):
            return Followed(allowed + 1, [])
        return Followed(allowed, [] if self._matcher.is_complete else self._matcher.forced())

    def fail(self, error: BaseException) -> None:
        """Does nothing: the draft stays as it is."""
