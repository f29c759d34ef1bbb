"""Follows a draft through a grammar: where the draft leaves it, and the tokens that come there."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from contextlib import suppress

from fastdeploy_lp.guided_decoding.phased_matcher import Matcher
from fastdeploy_lp.worker.logits_mask import Followed, Lead, Likely, Run


class DraftWalk:
    """Walks a copy of a sequence's matcher along a draft and on from there; a call of the grammar library's threads.

    found: None until it is known, and if the walk fails. client, ready, working, slow: see `Work`.
    """

    def __init__(self, matcher: Matcher, draft: Lead, ends: Collection[int], client: str) -> None:
        self.found: Followed | None = None
        self.client = client
        self.ready = self.slow = False
        self.working: threading.Thread | None = None
        self._matcher = matcher
        self._draft = draft
        self._ends = ends

    def fill(self) -> None:
        """Finds where the draft leaves the grammar, and what comes there."""
        # The sequence's own matcher meets the error, if the sequence comes to this token.
        with suppress(BaseException):
            self.found = self._walk()
        self.ready = True

    def _walk(self) -> Followed:
        draft = list(self._draft.tokens)
        until_end = next((place for place, token in enumerate(draft) if token in self._ends), len(draft))
        allowed = self._matcher.follow(draft[:until_end])
        if allowed == until_end < len(draft):
            return Followed(allowed + 1, [])
        return Followed(allowed, self._runs_after(draft[:allowed]))

    def _runs_after(self, draft: list[int]) -> list[Run]:
        """Returns forced tokens and likely ones in turns, until there are neither."""
        runs: list[Run] = []
        text, most, likely = list(draft), self._draft.most, self._draft.likely
        while len(text) < most and not self._matcher.is_complete:
            tokens = self._matcher.forced()[: most - len(text)]
            forced = bool(tokens)
            if forced:
                self._matcher.consume(tokens)
            elif likely is not None:
                tokens = self._first_allowed(likely, text)
            if not tokens:
                break
            text += tokens
            if runs and runs[-1].forced == forced:
                runs[-1].tokens.extend(tokens)
            else:
                runs.append(Run(tokens, forced))
        return runs

    def _first_allowed(self, likely: Likely, draft: Sequence[int]) -> list[int]:
        """Returns the likeliest token after the draft that the grammar allows, which the matcher takes; else none."""
        for token in likely(draft, self._matcher.forced_bytes()):
            if self._matcher.follow([token]):
                return [token]
        return []

    def fail(self, error: BaseException) -> None:
        """Does nothing: the draft stays as it is."""
