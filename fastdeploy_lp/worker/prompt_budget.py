"""Prompt tokens of a step: their number while sequences generate, and their division among sequences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fastdeploy_lp.worker.sequence import Sequence

# Prompt tokens of a step in which sequences generate, while the pace is unknown. A step of fewer tokens, without such
# sequences, does not count for the pace: most of its time are fixed costs.
FIRST_TOKENS = 4
# From one step to the next, the number of prompt tokens grows at most by this factor.
GROWTH = 2
# Weight of the last step in the averages.
WEIGHT = 0.3


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


def _affordable(sequence: Sequence, wanted: int, tokens: int) -> tuple[int, int]:
    """Returns how many of `wanted` tokens fit a budget of `tokens`, and their cost; one fits if `tokens` > 0."""
    if tokens <= 0:
        return 0, 0
    granted = min(wanted, max(tokens // sequence.prompt_token_cost, 1))
    return granted, min(granted * sequence.prompt_token_cost, tokens)


def _average(old: float, new: float) -> float:
    return new if not old else old + WEIGHT * (new - old)
