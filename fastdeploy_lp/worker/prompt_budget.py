"""The tokens of a step that go to prompts, and whose prompts get them."""

from __future__ import annotations

from collections.abc import Iterable

from fastdeploy_lp.worker.sequence import Sequence


class PromptBudget:
    """Grants tokens of a step's budget to prompts, in the order in which it is asked.

    A token of a prompt whose logprobs are wanted counts as several (`Sequence.prompt_token_cost`).
    """

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def has_tokens_for(self, _: Sequence) -> bool:
        """True if `grant` gives the sequence any."""
        return self._tokens > 0

    def grant(self, sequence: Sequence, wanted: int) -> int:
        """Tokens of the sequence that the step computes, at most `wanted`; 0 when nothing is left for it."""
        granted, cost = _affordable(sequence, wanted, self._tokens)
        self._tokens -= cost
        return granted


class FairPromptBudget:
    """Divides the tokens evenly among the clients of these sequences; one that needs less leaves the rest to others.

    sequences: those that may be granted tokens, the oldest first.
    """

    def __init__(self, tokens: int, sequences: Iterable[Sequence]) -> None:
        wanted: dict[str, int] = {}
        for sequence in sequences:
            left = (sequence.num_tokens - sequence.num_computed) * sequence.prompt_token_cost
            wanted[sequence.client] = wanted.get(sequence.client, 0) + left
        self._by_client = dict.fromkeys(wanted, 0)
        if wanted and tokens > 0:
            # Without a token the oldest might wait for ever where there are more clients than tokens.
            oldest = next(iter(wanted))
            self._by_client[oldest] += 1
            wanted[oldest] -= 1
            tokens -= 1
        for place, client in enumerate(sorted(wanted, key=wanted.__getitem__)):
            share = min(wanted[client], tokens // (len(wanted) - place))
            self._by_client[client] += share
            tokens -= share

    def has_tokens_for(self, sequence: Sequence) -> bool:
        """True if `grant` gives the sequence any."""
        return self._by_client.get(sequence.client, 0) > 0

    def grant(self, sequence: Sequence, wanted: int) -> int:
        """Tokens of the sequence that the step computes, at most `wanted`; 0 when its client's share is used up."""
        granted, cost = _affordable(sequence, wanted, self._by_client.get(sequence.client, 0))
        if granted:
            self._by_client[sequence.client] -= cost
        return granted


def _affordable(sequence: Sequence, wanted: int, tokens: int) -> tuple[int, int]:
    """Of `wanted` tokens, those that `tokens` of the budget pay for, and what they cost; one may cost all there is."""
    if tokens <= 0:
        return 0, 0
    granted = min(wanted, max(tokens // sequence.prompt_token_cost, 1))
    return granted, min(granted * sequence.prompt_token_cost, tokens)
