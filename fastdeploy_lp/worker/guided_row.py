"""Work of the grammar library's threads: one sequence's position in its grammar, and a compilation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from fastdeploy_lp.guided_decoding.compiler import GrammarError
from fastdeploy_lp.guided_decoding.phased_matcher import Matcher
from fastdeploy_lp.worker.draft_walk import DraftWalk
from fastdeploy_lp.worker.logits_mask import Lead
from fastdeploy_lp.worker.masks_ahead import MasksAhead

EVERYTHING = -1


class GuidedRow:
    """Follows one sequence through its grammar; its calls run in threads, one at a time.

    bits: the mask of the next token, [words]; valid while `ready`. error: why the sequence cannot continue. An error
    makes the row ready, with a mask that allows everything: its next step ends the request. complete: nothing can
    follow. begun: its matcher exists. consumed: the last token was read. working: the thread in which a call runs.
    client: the request's client. awaited: a step has left the row out. slow: a call has taken so long that no step
    waits for the row any more. forced: tokens of the only text that may follow, found with the mask if `forces`.
    """

    def __init__(self, words: int, client: str, *, forces: bool = False) -> None:
        self.bits: NDArray[np.int32] = np.empty(words, np.int32)
        self.client = client
        self.ready = False
        self.begun = False
        self.consumed = True
        self.awaited = False
        self.slow = False
        self.complete = False
        self.forced: list[int] = []
        self._forces = forces
        self.error: str | None = None
        self.working: threading.Thread | None = None
        self._matcher: Matcher | None = None

    def begin(self, matcher: Callable[[], Matcher], output: Sequence[int]) -> None:
        """Sets the matcher and has it read the output so far."""
        try:
            self._matcher = matcher()
        except BaseException as error:  # noqa: BLE001 - a panic of the library, too, is this request's own
            self.fail(error)
        # A preempted sequence may have been complete already, which no step had found yet.
        if output:
            self.consume(list(output))
        self.begun = True

    @property
    def looks_ahead(self) -> bool:
        """True unless each mask must wait for the token before it."""
        return self._matcher is not None and self.error is None and not self.slow

    def masks_ahead(self, draft: Sequence[int], ends: Collection[int]) -> MasksAhead:
        """Returns the masks of a draft's rows, yet to be computed; the row must be ready."""
        matcher = self._matcher.copy() if draft and self.looks_ahead and self._matcher is not None else None
        return MasksAhead(matcher, self.bits, draft, ends, self.client)

    def draft_walk(self, draft: Lead, ends: Collection[int]) -> DraftWalk | None:
        """Returns the walk along a draft, yet to be made; None if the matcher cannot be copied now."""
        if not (self.ready and self.looks_ahead) or self._matcher is None:
            return None
        return DraftWalk(self._matcher.copy(), draft, ends, self.client)

    def consume(self, tokens: list[int]) -> None:
        """Reads sampled tokens; `bits` stays the previous mask until `fill` has returned."""
        if self.error is not None or self._matcher is None:
            return
        try:
            self._matcher.consume(tokens)
            self.complete = self._matcher.is_complete
        except BaseException as error:  # noqa: BLE001 - as above
            self.fail(error)
        self.consumed = True

    def fill(self) -> None:
        """Computes the mask."""
        bits = self.bits
        if self.error is not None or self._matcher is None:
            self.ready = True
            return
        try:
            self._matcher.fill(bits)
            if self._forces:
                self.forced = self._matcher.forced()
        except BaseException as error:  # noqa: BLE001 - as above
            self.fail(error)
        else:
            self.ready = True

    def fail(self, error: BaseException) -> None:
        """Records an error, of which the first counts, and makes the row ready."""
        reason = str(error) if isinstance(error, GrammarError) else f"{type(error).__name__}: {error}"
        if self.error is None:
            # A new array: a lost call may still write to the old one.
            self.bits = np.full(self.bits.shape, EVERYTHING, np.int32)
            self.error = f"guided decoding cannot go on: {reason}"
        self.ready = True


class Compilation:
    """A grammar being compiled, shared by all rows that wait for it."""

    def __init__(self, compiled: Future[LLMatcher], client: str) -> None:
        self.client = client
        self.slow = False
        self.working: threading.Thread | None = None
        self._compiled = compiled

    @property
    def ready(self) -> bool:
        """True if it has ended or failed."""
        return self._compiled.done()

    def fail(self, error: BaseException) -> None:
        """Ends the compilation with the error."""
        # The compilation may have just finished.
        with suppress(InvalidStateError):
            self._compiled.set_exception(error)
