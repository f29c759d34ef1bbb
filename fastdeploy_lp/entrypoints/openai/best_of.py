"""Selection of the best of several candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fastdeploy_lp.outputs import CompletionOutput


def best_of(candidates: Sequence[CompletionOutput], count: int) -> list[CompletionOutput]:
    """Returns the `count` candidates with the highest log probability per token, best first and renumbered.

    Ties keep their order. Candidates without tokens or logprobs rank last.
    """
    ranked = sorted(candidates, key=_mean_logprob, reverse=True)
    return [replace(candidate, index=index) for index, candidate in enumerate(ranked[:count])]


def _mean_logprob(candidate: CompletionOutput) -> float:
    if candidate.cumulative_logprob is None or not candidate.token_ids:
        return float("-inf")
    return candidate.cumulative_logprob / len(candidate.token_ids)
