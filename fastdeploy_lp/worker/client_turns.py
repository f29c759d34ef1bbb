"""Turns of the sequences of clients that generate many at once, so that these hold up other clients little."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable

from fastdeploy_lp.worker.prompt_budget import even_shares
from fastdeploy_lp.worker.sequence import Sequence

UNLIMITED = sys.maxsize
# Weight of all earlier steps, relative to that of the last one.
MEMORY = 0.97
# Steps with about the same number of tokens do not show the cost of one more.
LEAST_VARIANCE = 1e-4
# A step that takes this many times its estimate counts as one that takes so long: the excess is the machine's load.
LONGEST = 3.0


class StepTime:
    """Estimates the fixed time of a step and the time of each token, by a line through the recent steps.

    Relative errors count, so that steps of long prompts do not outweigh others. While all steps have the same number
    of tokens, all of their time is the tokens'.
    """

    def __init__(self) -> None:
        # Weighted sums over the steps: of 1, u, v, u squared and u * v, for u steps and v seconds per token.
        self._sums: tuple[float, ...] = (0.0,) * 5

    def took(self, tokens: int, seconds: float) -> None:
        """Records a step of at least one token."""
        if self._sums[0]:
            seconds = min(seconds, LONGEST * self.of(tokens))
        u, v = 1 / tokens, seconds / tokens
        new = (1.0, u, v, u * u, u * v)
        self._sums = tuple(MEMORY * old + added for old, added in zip(self._sums, new, strict=True))

    def of(self, tokens: int) -> float:
        """Returns the estimated seconds of a step with so many tokens, 0.0 before the first step."""
        fixed, each = self._line()
        return fixed + each * tokens

    def tokens_in(self, seconds: float) -> float:
        """Returns the number of tokens that a step of so many seconds has time for; infinite if they cost nothing."""
        fixed, each = self._line()
        return (seconds - fixed) / each if each else float("inf")

    def _line(self) -> tuple[float, float]:
        """Returns the fixed time and that of each token, in seconds; neither is below 0."""
        count, sum_u, sum_v, sum_uu, sum_uv = self._sums
        if not count:
            return 0.0, 0.0
        mean_u, mean_v = sum_u / count, sum_v / count
        variance = sum_uu / count - mean_u**2
        if variance < LEAST_VARIANCE:
            return 0.0, mean_v
        fixed = max((sum_uv / count - mean_u * mean_v) / variance, 0.0)
        each = mean_v - fixed * mean_u
        return (fixed, each) if each >= 0 else (mean_v / mean_u, 0.0)


class ClientTurns:
    """Limits the time that other clients add to a client's steps.

    A step has at least one token of each client, and more of them while it takes no longer than the step would take
    with the tokens of the client that generates the fewest, plus the share. Clients with more sequences than that get
    as even a number of tokens as possible, and their sequences take turns: the one whose last token is longest ago
    first. A single client has no limit.

    share: of the time of the client's own tokens; 0 for no limit.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._time = StepTime()
        # Clients by slot, in the order of turns.
        self._clients: dict[int, str] = {}
        self._held: set[int] = set()
        self._tokens = UNLIMITED

    def enter(self, sequence: Sequence) -> None:
        """Registers a sequence in its slot."""
        if self._share:
            self._clients[sequence.slot] = sequence.client

    def leave(self, slot: int) -> None:
        """Clears a slot."""
        self._clients.pop(slot, None)
        self._held.discard(slot)

    def begin(self, generating: Iterable[int], prompts: Iterable[Sequence]) -> None:
        """Begins a step: these slots have one token left to compute, and these sequences more."""
        self._held, self._tokens = set(), UNLIMITED
        if not self._share:
            return
        ready = set(generating)
        rows = Counter(self._clients[slot] for slot in ready)
        if not rows or len(rows | Counter(sequence.client for sequence in prompts)) == 1:
            return
        own = min(rows.values())
        self._tokens = int(min(self._time.tokens_in((1 + self._share) * self._time.of(own)), UNLIMITED))
        left = even_shares(rows, max(self._tokens, len(rows)))
        for slot in [slot for slot in self._clients if slot in ready]:
            client = self._clients[slot]
            if left[client]:
                left[client] -= 1
                self._clients[slot] = self._clients.pop(slot)
            else:
                self._held.add(slot)

    def holds(self, slot: int) -> bool:
        """Returns True if the slot has no turn in this step."""
        return slot in self._held

    def room(self, taken: int, least: int = 0) -> int:
        """Returns the number of tokens that may be added to a step of `taken` tokens, at least `least`."""
        return max(self._tokens - taken, least)

    def took(self, num_generating: int, tokens: int, seconds: float) -> None:
        """Records the duration of a step and the number of its tokens, prompt tokens weighted as in the budget."""
        if self._share and num_generating:
            self._time.took(tokens, seconds)
