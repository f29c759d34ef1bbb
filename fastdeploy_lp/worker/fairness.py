"""Fairness in a step: the tokens of prompts beside sequences that generate, and turns of clients and of uploads."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping

from fastdeploy_lp.stats import ProcessorStats
from fastdeploy_lp.worker.sequence import Sequence

# Prompt tokens of a step in which sequences generate, while the pace is unknown. A step of fewer tokens, without such
# sequences, does not count for the pace: most of its time are fixed costs.
FIRST_TOKENS = 4
# From one step to the next, the number of prompt tokens grows at most by this factor.
GROWTH = 2
# Weight of the last step in the averages of `StepPace`.
WEIGHT = 0.3
# Tokens of a step without a limit.
UNLIMITED = sys.maxsize
# Weight of all earlier steps, relative to that of the last one, in `StepTime`.
MEMORY = 0.97
# Steps with about the same number of tokens do not show the cost of one more.
LEAST_VARIANCE = 1e-4
# A step that takes this many times its estimate counts as one that takes so long: the excess is the machine's load.
LONGEST = 3.0


class StepPace:
    """Limits the seconds that prompts add to a step while sequences generate.

    Results do not depend on it: they are the same for any chunking of a prompt.

    limit: seconds; 0 for no limit.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._generating_seconds = 0.0
        self._token_seconds = 0.0
        # Prompt tokens for which a step has had time. A step of few does not show the time of one, and while another
        # limit keeps steps small, that estimate may become 0.
        self._proven = 0.0

    def allowance(self, budget: int, least: int = 1) -> int:
        """Returns the number of prompt tokens, at most `budget`, for a step in which sequences generate.

        least: the number however slow they are, at least 1, so that a prompt of any length finishes.
        """
        if not self._limit:
            return budget
        if not self._token_seconds:
            return min(budget, max(FIRST_TOKENS, least))
        # Not rounded down: the fewer tokens share the fixed costs, the slower each seems, and their number would stay.
        affordable = round(min(budget, self._limit / self._token_seconds))
        return min(budget, max(min(affordable, max(round(GROWTH * self._proven), FIRST_TOKENS)), least))

    def took(self, seconds: float, num_generating: int, num_prompt_tokens: int) -> None:
        """Records the duration of a step with these tokens; prompt tokens are weighted as in the budget."""
        if not num_prompt_tokens:
            self._generating_seconds = _average(self._generating_seconds, seconds)
            return
        own = seconds - self._generating_seconds if num_generating else seconds
        if num_generating or num_prompt_tokens >= FIRST_TOKENS:
            self._token_seconds = _average(self._token_seconds, max(own, 0.0) / num_prompt_tokens)
            late = own > self._limit
            fitting = num_prompt_tokens * self._limit / own if late else float(num_prompt_tokens)
            self._proven = fitting if late and num_generating else max(self._proven, fitting)


class PromptBudget:
    """Grants tokens of a step's budget to prompts, in the order of the calls.

    A prompt token counts as several if prompt logprobs are requested (`Sequence.prompt_token_cost`).
    """

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def has_tokens_for(self, _: Sequence) -> bool:
        """Returns True if `grant` returns at least one token for the sequence."""
        return self._tokens > 0

    def grant(self, sequence: Sequence, wanted: int) -> int:
        """Returns the number of the sequence's tokens to compute, at most `wanted`; 0 if the budget is spent."""
        granted, cost = _affordable(sequence, wanted, self._tokens)
        self._tokens -= cost
        return granted


class FairPromptBudget:
    """Divides the tokens evenly among the clients of these sequences; other clients share what a client does not need.

    sequences: candidates for tokens, oldest first.
    """

    def __init__(self, tokens: int, sequences: Iterable[Sequence]) -> None:
        wanted: dict[str, int] = {}
        for sequence in sequences:
            left = (sequence.num_tokens - sequence.num_computed) * sequence.prompt_token_cost
            wanted[sequence.client] = wanted.get(sequence.client, 0) + left
        self._by_client = dict.fromkeys(wanted, 0)
        if 0 < tokens < len(wanted):
            # Without a token, the oldest could wait forever.
            oldest = next(iter(wanted))
            self._by_client[oldest] += 1
            wanted[oldest] -= 1
            tokens -= 1
        for client, share in even_shares(wanted, tokens).items():
            self._by_client[client] += share

    def has_tokens_for(self, sequence: Sequence) -> bool:
        """Returns True if `grant` returns at least one token for the sequence."""
        return self._by_client.get(sequence.client, 0) > 0

    def grant(self, sequence: Sequence, wanted: int) -> int:
        """Returns the count of the sequence's tokens to compute: at most `wanted`; 0 once the client has no share."""
        granted, cost = _affordable(sequence, wanted, self._by_client.get(sequence.client, 0))
        if granted:
            self._by_client[sequence.client] -= cost
        return granted


def even_shares(wanted: Mapping[str, int], tokens: int) -> dict[str, int]:
    """Divides tokens evenly among clients; tokens that a client does not need go to the others."""
    shares: dict[str, int] = {}
    for client in sorted(wanted, key=wanted.__getitem__):
        shares[client] = min(wanted[client], tokens // (len(wanted) - len(shares)))
        tokens -= shares[client]
    return shares


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


class UploadPace:
    """Limits the time that uploaded processors add to steps while sequences without any generate.

    A sequence has a turn in a step that samples its token, in which its processors run; in other steps it is held.
    Every step earns time; while any is left, sequences have turns, the one whose last turn is longest ago first. So the
    processors add no more than the share on average, and to one step no more than that and one turn. Without other
    sequences, all have a turn in every step.

    share: of a step's time without these processors.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        # Seconds earned and not used; below 0 after a turn that took longer.
        self._saved = 0.0
        # Names of the uploads by slot, in the order of turns.
        self._names: dict[int, tuple[str, ...]] = {}
        # In this step: the turns, and the seconds left for further ones, None without a limit.
        self._turns: dict[int, tuple[str, ...]] = {}
        self._left: float | None = None
        # By name: the processor's seconds until now, and those of a turn.
        self._counted: dict[str, float] = {}
        self._costs: dict[str, float] = {}

    def enter(self, sequence: Sequence) -> None:
        """Registers a sequence in its slot."""
        if sequence.selection.brought:
            self._names[sequence.slot] = tuple(sequence.selection.brought)

    def leave(self, slot: int) -> None:
        """Clears a slot; does nothing for a slot without uploaded processors."""
        self._names.pop(slot, None)

    def begin(self, generating: Iterable[int]) -> None:
        """Begins a step: these slots have one token left to compute, and take turns while there is time."""
        ready: set[int] = set()
        beside_others = False
        for slot in generating:
            if slot in self._names:
                ready.add(slot)
            else:
                beside_others = True
                if not self._names:
                    break
        self._turns, self._left = {}, self._saved if beside_others else None
        for slot in self._names:
            if slot in ready and not self.holds(slot):
                self.take_turn(slot)

    def holds(self, slot: int) -> bool:
        """Returns True if the slot has no turn in this step, and can take none."""
        return self._left is not None and self._left < 0 and slot in self._names and slot not in self._turns

    def take_turn(self, slot: int) -> None:
        """Adds a turn of the slot to this step; does nothing for a slot without uploaded processors."""
        names = self._names.get(slot)
        if names is None:
            return
        self._turns[slot] = names
        if self._left is not None:
            # A processor's first turn, whose cost is unknown, is the last one of a step.
            self._left -= sum(self._costs.get(name, math.inf) for name in names)

    def took(self, seconds: float, stats: Mapping[str, ProcessorStats]) -> None:
        """Records the duration of the step; `stats` has the seconds of all processors until now."""
        if not self._turns and not self._names:
            return
        spent = self._count(stats)
        # Turns of a step without other sequences are free: they hold up nobody.
        if self._left is not None:
            earned = self._share * max(seconds - spent, 0.0)
            self._saved = min(self._saved + earned - spent, earned)
        for slot in self._turns:
            if slot in self._names:
                self._names[slot] = self._names.pop(slot)

    def _count(self, stats: Mapping[str, ProcessorStats]) -> float:
        """Returns the seconds of the step's turns, and notes those of a turn of each processor."""
        spent = 0.0
        for name, turns in Counter(name for names in self._turns.values() for name in names).items():
            # An upload that is gone fails its requests and has no statistics.
            total, counted = stats[name].seconds if name in stats else 0.0, self._counted.get(name, 0.0)
            # With less than before, the chain has forgotten the upload in between, and counts anew.
            seconds = total - counted if total >= counted else total
            self._counted[name], self._costs[name] = total, seconds / turns
            spent += seconds
        if len(self._counted) > len(stats):
            self._counted = {name: total for name, total in self._counted.items() if name in stats}
            self._costs = {name: cost for name, cost in self._costs.items() if name in stats}
        return spent


def _affordable(sequence: Sequence, wanted: int, tokens: int) -> tuple[int, int]:
    """Returns how many of `wanted` tokens fit a budget of `tokens`, and their cost; one fits if `tokens` > 0."""
    if tokens <= 0:
        return 0, 0
    granted = min(wanted, max(tokens // sequence.prompt_token_cost, 1))
    return granted, min(granted * sequence.prompt_token_cost, tokens)


def _average(old: float, new: float) -> float:
    return new if not old else old + WEIGHT * (new - old)
