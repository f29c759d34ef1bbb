"""A walk through a grammar, which shows what its masks cost."""

from __future__ import annotations

import random
import time
from collections.abc import Collection

import numpy as np

from fastdeploy_lp.guided_decoding.compiler import GrammarError, GrammarMatcher, words_for

TOKENS = 24
MASK_SECONDS = 0.5
"""Processor time that one mask, or one token's step through the grammar, may take."""

WALK_SECONDS = 1.0
"""Processor time after which a walk ends early."""


def probe(matcher: GrammarMatcher, vocab_size: int, eos_token_ids: Collection[int]) -> None:
    """Compute the first masks of a text of random tokens; the same grammar takes the same walk each time.

    Raises GrammarError for a grammar whose first mask cannot be computed, and for one whose masks take too long. A
    text may lead a usable grammar beyond the library's limits later on; that ends the walk.
    """
    choice = random.Random(0)
    bits = np.zeros(words_for(vocab_size), np.int32)
    ends = np.array(sorted(eos_token_ids), np.int64)
    began = before = time.thread_time()
    for step in range(TOKENS):
        try:
            matcher.fill(bits)
            token = _token(bits, vocab_size, ends, choice)
            if token is None:
                return
            matcher.consume([token])
        except GrammarError:
            if step == 0:
                raise
            return
        now = time.thread_time()
        if now - before > MASK_SECONDS:
            raise GrammarError(too_slow())
        if now - began > WALK_SECONDS or matcher.is_complete:
            return
        before = now


def too_slow() -> str:
    """The reason to refuse a grammar whose masks take too long."""
    return f"the tokens that it allows take more than {MASK_SECONDS:g} seconds to find; make it less ambiguous"


def _token(bits: np.ndarray, vocab_size: int, ends: np.ndarray, choice: random.Random) -> int | None:
    """One of the allowed tokens that does not end the text; None if there is none."""
    allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[:vocab_size])
    allowed = np.setdiff1d(allowed, ends, assume_unique=True)
    return int(allowed[choice.randrange(allowed.size)]) if allowed.size else None
