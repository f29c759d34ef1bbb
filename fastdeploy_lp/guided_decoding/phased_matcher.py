"""A matcher of outputs that have a form in one phase only, and the masks of the tokens before it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.guided_decoding.compiler import WORD_BITS, GrammarMatcher, words_for
from fastdeploy_lp.request.phase import Phase, PhasePosition, Section


class WaitingMasks:
    """Masks of the tokens that may come outside of a form; safe for several threads.

    vocabulary: returns the bytes of each token, read at the first use. eos_token_ids: the ends of an output.
    """

    def __init__(
        self, vocabulary: Callable[[], Sequence[bytes]], vocab_size: int, eos_token_ids: Collection[int]
    ) -> None:
        self._read = vocabulary
        self._vocabulary: Sequence[bytes] | None = None
        self._lock = threading.Lock()
        self._words = words_for(vocab_size)
        self._ends = tuple(eos_token_ids)
        self._masks: dict[tuple[str, int, bool], NDArray[np.int32]] = {}

    def token(self, token_id: int) -> bytes:
        """Returns a token's bytes."""
        return self._tokens()[token_id]

    def before(self, section: Section, pending: bytes, *, exact: bool) -> NDArray[np.int32]:
        """Returns the mask [words] of a section's next token after its bytes `pending`.

        exact: no token may hold more than the rest of the section's marker, since the form begins after it.
        """
        marker = section.until.encode() if exact else b""
        held = next((size for size in range(len(marker) - 1, 0, -1) if pending.endswith(marker[:size])), 0)
        key = (section.until if exact else "", held, section.may_end)
        if key not in self._masks:
            self._masks[key] = self._mask(marker, held, may_end=section.may_end)
        return self._masks[key]

    def _mask(self, marker: bytes, held: int, *, may_end: bool) -> NDArray[np.int32]:
        banned = [] if may_end else list(self._ends)
        if marker:
            banned += [token for token, text in enumerate(self._tokens()) if _exceeds(marker, held, text)]
        allowed = np.ones(self._words * WORD_BITS, np.uint8)
        allowed[banned] = 0
        return np.packbits(allowed, bitorder="little").view(np.int32)

    def _tokens(self) -> Sequence[bytes]:
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = self._read()
            return self._vocabulary


class PhasedMatcher:
    """Follows an output that has a form in one phase: the form's matcher there, `WaitingMasks` elsewhere.

    form: returns a matcher at the beginning of the form, whose grammar ends with the phase's closing marker. opening:
    the same for an output that begins with the phase's opening marker, or has the form; None without such a marker.
    Not for several threads at a time.
    """

    def __init__(
        self,
        phase: Phase,
        form: Callable[[], GrammarMatcher],
        opening: Callable[[], GrammarMatcher] | None,
        waiting: WaitingMasks,
    ) -> None:
        self._position = PhasePosition(phase)
        self._sections = phase.sections
        self._form = form
        self._waiting = waiting
        self._matcher: GrammarMatcher | None = None
        if opening is not None:
            self._matcher = opening()
        elif self._position.inside:
            self._matcher = form()

    @property
    def is_complete(self) -> bool:
        """True if nothing can follow."""
        return self._matcher is not None and self._matcher.is_complete and not self._position.section.until

    def copy(self) -> PhasedMatcher:
        """Returns a matcher at the same place of the text, which takes other tokens from there."""
        made = copy(self)
        made._position = copy(self._position)
        made._matcher = None if self._matcher is None else self._matcher.copy()
        return made

    def consume(self, token_ids: Sequence[int]) -> None:
        """Takes tokens, of which none is an end of sequence; raises GrammarError at one that is not allowed."""
        for token in token_ids:
            if self._matcher is not None:
                self._matcher.consume([token])
            self._go_on(token)

    def follow(self, token_ids: Sequence[int]) -> int:
        """Takes tokens up to the first one that the form rules out, and returns their number; raises GrammarError."""
        for count, token in enumerate(token_ids):
            if self.is_complete or (self._matcher is not None and not self._matcher.follow([token])):
                return count
            self._go_on(token)
        return len(token_ids)

    def fill(self, bits: NDArray[np.int32]) -> None:
        """Sets the mask [words] of the next token; raises GrammarError."""
        if self._matcher is not None:
            self._matcher.fill(bits)
            return
        section = self._position.section
        exact = bool(section.until) and not section.inside and self._sections[section.then].inside
        bits[:] = self._waiting.before(section, self._position.pending, exact=exact)

    def forced(self) -> list[int]:
        """Returns the tokens of the only text that may follow; none if there is a choice."""
        return [] if self._matcher is None else self._matcher.forced()

    def forced_bytes(self) -> bytes:
        """Returns the only text that may follow, also where it is not known in which tokens."""
        return b"" if self._matcher is None else self._matcher.forced_bytes()

    def _go_on(self, token: int) -> None:
        """Moves the position past a token, which the form's matcher has taken."""
        matcher, position = self._matcher, self._position
        section = position.section
        if matcher is None:
            position.push(self._waiting.token(token))
            if position.inside:
                self._matcher = self._form()
            return
        if section.opening:
            position.push(self._waiting.token(token))
            if not (position.section.opening or position.section.inside):
                self._matcher = None
            return
        # The form's own end counts, not a marker in its text.
        position.num_tokens += 1
        if section.until and matcher.is_complete:
            position.go_on()
            self._matcher = None


Matcher = GrammarMatcher | PhasedMatcher


def _exceeds(marker: bytes, held: int, text: bytes) -> bool:
    """Returns True if the marker's first `held` bytes and a token's text have the marker before their end."""
    # Fast: most tokens do not have the marker's last byte in their middle.
    if marker[-1] not in text[:-1]:
        return False
    return marker in (marker[:held] + text)[:-1]
