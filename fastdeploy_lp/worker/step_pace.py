"""How many tokens of prompts a step may compute beside sequences that generate, by the time that they have taken."""

from __future__ import annotations

# A step computes at least so many, however slow they are: a prompt of any length comes to its end.
LEAST_TOKENS = 4
# Weight of the last step in the averages.
WEIGHT = 0.3


class StepPace:
    """Keeps what prompts add to a step below a number of seconds while sequences generate.

    Results do not depend on it: a prompt has the same tokens however it is cut.

    limit: those seconds; 0 for no limit.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._generating_seconds = 0.0
        self._token_seconds = 0.0

    def allowance(self, budget: int) -> int:
        """Tokens of prompts, at most `budget`, for a step in which sequences generate."""
        if not self._limit:
            return budget
        affordable = int(self._limit / self._token_seconds) if self._token_seconds else 0
        return min(budget, max(affordable, LEAST_TOKENS))

    def took(self, seconds: float, num_generating: int, num_prompt_tokens: int) -> None:
        """A step has computed these tokens, prompts' weighted as in the budget."""
        if not num_prompt_tokens:
            self._generating_seconds = _average(self._generating_seconds, seconds)
            return
        own = seconds - self._generating_seconds if num_generating else seconds
        # Of a few tokens, the time of all that a step does besides would be taken for theirs.
        if num_prompt_tokens >= LEAST_TOKENS:
            self._token_seconds = _average(self._token_seconds, max(own, 0.0) / num_prompt_tokens)


def _average(old: float, new: float) -> float:
    return new if not old else old + WEIGHT * (new - old)
