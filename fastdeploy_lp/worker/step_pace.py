"""Limit on a step's prompt tokens while sequences generate, from measured times."""

from __future__ import annotations

# Minimum per step, however slow: a prompt of any length finishes.
LEAST_TOKENS = 4
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

    def allowance(self, budget: int) -> int:
        """Returns the number of prompt tokens, at most `budget`, for a step in which sequences generate."""
        if not self._limit:
            return budget
        affordable = int(self._limit / self._token_seconds) if self._token_seconds else 0
        return min(budget, max(affordable, LEAST_TOKENS))

    def took(self, seconds: float, num_generating: int, num_prompt_tokens: int) -> None:
        """Records the duration of a step with these tokens; prompt tokens are weighted as in the budget."""
        if not num_prompt_tokens:
            self._generating_seconds = _average(self._generating_seconds, seconds)
            return
        own = seconds - self._generating_seconds if num_generating else seconds
        # With only a few tokens, the step's fixed costs would be counted as theirs.
        if num_prompt_tokens >= LEAST_TOKENS:
            self._token_seconds = _average(self._token_seconds, max(own, 0.0) / num_prompt_tokens)


def _average(old: float, new: float) -> float:
    return new if not old else old + WEIGHT * (new - old)
