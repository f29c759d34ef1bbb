"""Sizes of responses with numbers for every prompt token, computed before the prompt runs."""

from __future__ import annotations

from collections.abc import Sequence

from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.prepare.input_processor import EngineRequest
from fastdeploy_lp.request.limits import MAX_POOLED_NUMBERS, MAX_PROMPT_LOGPROBS
from fastdeploy_lp.request.pooling_params import TOKEN_EMBED

# Bytes of a token id, rank and logprob together, and of one number.
LOGPROB_BYTES = 12
NUMBER_BYTES = 4


def prompt_logprobs_bytes(requests: Sequence[EngineRequest], field: str) -> int:
    """Returns the bytes of the prompts' logprobs; raises InvalidRequestError for `field` if there are too many."""
    count = sum(
        len(each.prompt.token_ids) * (each.settled.params.prompt_logprobs + 1)
        for each in requests
        if each.settled.params.prompt_logprobs is not None
    )
    if count > MAX_PROMPT_LOGPROBS:
        reason = f"the prompts' tokens times one more than the logprobs of each are {count}"
        raise InvalidRequestError(field, f"{reason}; at most {MAX_PROMPT_LOGPROBS} are allowed")
    return count * LOGPROB_BYTES


def token_vectors_bytes(requests: Sequence[EngineRequest], hidden_size: int) -> int:
    """Returns the bytes of the vectors of all tokens; raises InvalidRequestError if there are too many."""
    pooled = [(each.prompt, each.settled.pooling) for each in requests]
    tokens = sum(len(each.token_ids) for each, params in pooled if params is not None and params.task == TOKEN_EMBED)
    if tokens * hidden_size > MAX_POOLED_NUMBERS:
        reason = f"vectors of {tokens} tokens with {hidden_size} numbers each are too many to answer with"
        raise InvalidRequestError("task", f"{reason}; at most {MAX_POOLED_NUMBERS} numbers are allowed")
    return tokens * hidden_size * NUMBER_BYTES
