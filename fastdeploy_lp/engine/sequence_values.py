"""Limits the values that every sequence of a request carries: lists of parameters and arguments of processors."""

from __future__ import annotations

from typing import Any

from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.request_limits import MAX_CARRIED_VALUES
from fastdeploy_lp.sampling_params import SamplingParams

# A word is at least one list of tokens.
LISTS = ("bad_words", "bad_words_token_ids", "allowed_token_ids", "stop_token_ids", "stop")
ARGUMENTS = ("logit_bias", "logits_processors_args", "extra_args", "logits_processors")


def require_few_values(params: SamplingParams, num_prompts: int) -> None:
    """Raises InvalidRequestError if lists and arguments, times prompts, times `n`, exceed the worker's limit."""
    sequences = num_prompts * params.n
    counts = {name: count for name in (*LISTS, *ARGUMENTS) if (count := num_values(getattr(params, name)))}
    each = sum(counts.values())
    # The limits of a request body bound the values of one sequence.
    if sequences <= 1 or each * sequences <= MAX_CARRIED_VALUES:
        return
    largest = max(counts, key=counts.__getitem__)
    fields = ", ".join(sorted(counts, key=counts.__getitem__, reverse=True))
    raise InvalidRequestError(
        largest,
        f"{fields} have {each} values, which {sequences} sequences ({num_prompts} prompts, n = {params.n}) carry each; "
        f"all of them together may carry {MAX_CARRIED_VALUES}",
    )


def num_values(value: Any) -> int:
    """Returns the number of entries of a list or object, nested ones included; 0 for anything else."""
    count, level = 0, [value]
    while level:
        inside = [each for each in level if isinstance(each, (list, dict))]
        count += sum(map(len, inside))
        level = [each for one in inside for each in (one.values() if isinstance(one, dict) else one)]
    return count
