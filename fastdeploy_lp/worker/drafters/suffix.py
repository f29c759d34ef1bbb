"""Drafts from the answers to other requests of the same client."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from fastdeploy_lp.config.speculation import Speculation
from fastdeploy_lp.worker.drafters.answer_index import AnswerIndex, Piece
from fastdeploy_lp.worker.drafters.drafter import Draft, Drafter, MatchKinds
from fastdeploy_lp.worker.sequence import Sequence

MATCHES = MatchKinds("suffix")
# Tokens that a step adds to the index at most: a fraction of a millisecond.
PORTION = 512
# Tokens of ended answers that wait for it at most, beyond the last answer.
MOST_WAITING = 65_536


@dataclass(slots=True)
class Follower:
    """A sequence in a slot. known: output tokens that are indexed, or wait for it, since before a preemption."""

    sequence: Sequence
    known: int


@dataclass(slots=True)
class Answer:
    """Output tokens `begin` … `end - 1` of a sequence that left its slot, which wait to be indexed."""

    sequence: Sequence
    begin: int
    end: int


class SuffixDrafter(Drafter):
    """Repeats the text after the longest match of a sequence's last tokens in earlier answers to the same client.

    Every token that was output is indexed, also of aborted requests, once its sequence leaves the slot. Requests
    without speculation neither have drafts nor are indexed. Source: see `AnswerIndex`.
    """

    kinds: ClassVar[dict[str, float]] = MATCHES.shares

    def __init__(self, settings: Speculation) -> None:
        self._longest = settings.prompt_lookup_max
        self._index = AnswerIndex(settings.suffix_max_tokens, settings.prompt_lookup_min, settings.prompt_lookup_max)
        self._by_slot: dict[int, Follower] = {}
        self._waiting: deque[Answer] = deque()
        self._num_waiting = 0

    def enter(self, sequence: Sequence) -> None:
        """See `Drafter`."""
        if sequence.params.speculative:
            self._by_slot[sequence.slot] = Follower(sequence, len(sequence.output_token_ids))

    def leave(self, slot: int) -> None:
        """Clears a slot; the answer waits to be indexed."""
        follower = self._by_slot.pop(slot, None)
        if follower is None:
            return
        answer = Answer(follower.sequence, follower.known, len(follower.sequence.output_token_ids))
        while self._waiting and self._num_waiting > MOST_WAITING:
            oldest = self._waiting.popleft()
            self._num_waiting -= oldest.end - oldest.begin
        if answer.begin < answer.end:
            self._waiting.append(answer)
            self._num_waiting += answer.end - answer.begin

    def begin_step(self, step: int, least_share: float) -> bool:  # noqa: ARG002
        """See `Drafter`: indexes a portion of the answers that wait."""
        pieces: list[Piece] = []
        left = PORTION
        while self._waiting and left > 0:
            piece = self._next_piece(left)
            pieces.append(piece)
            left -= len(piece)
        if pieces:
            self._index.add(pieces)
        return True

    def _next_piece(self, most: int) -> Piece:
        """Returns at most `most` tokens of the answer that has waited longest, without which it waits on."""
        answer = self._waiting[0]
        sequence, count = answer.sequence, min(answer.end - answer.begin, most)
        begin = len(sequence.prompt_token_ids) + answer.begin
        answer.begin += count
        self._num_waiting -= count
        if answer.begin == answer.end:
            self._waiting.popleft()
        return Piece(
            self._index.owner(sequence.client),
            sequence.token_ids_between(max(begin - self._longest, 0), begin),
            sequence.token_ids_between(begin, begin + count),
        )

    def draft(self, sequence: Sequence, count: int) -> Draft | None:
        """See `Drafter`."""
        end = sequence.num_tokens
        text = sequence.token_ids_between(max(end - self._longest, 0), end)
        found = self._index.find(self._index.owner(sequence.client), text, count)
        return None if found is None else Draft(found.tokens, MATCHES.of(found.length, self._longest))
