"""The worker's log probabilities with their tokens spelled out."""

from __future__ import annotations

from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.messages import TokenLogprobs
from fastdeploy_lp.outputs import Logprob


def spelled_out(position: TokenLogprobs, tokenizer: Tokenizer) -> dict[int, Logprob]:
    """By token id: the token that stands there first, then the most likely ones that are not this one."""
    found = {position.token_ids[0]: (position.logprobs[0], position.rank)}
    for rank, token in enumerate(position.token_ids[1:], start=1):
        found.setdefault(token, (position.logprobs[rank], rank))
    return {token: Logprob(logprob, rank, tokenizer.token_text(token)) for token, (logprob, rank) in found.items()}
