"""Scores of texts that may have a watermark of `keyed_draws`. Imports only numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.builtin.keyed_hash import Words, context_mixers, token_words

DEFAULT_WIDTH = 4
DEFAULT_LAYERS, MAX_LAYERS = 30, 32
WORD = 2.0**32


@dataclass(frozen=True)
class DrawScore:
    """Score of a text.

    scored: number of tokens that it is computed from. mean: their mean score; `expected` is the mean in text without
    the watermark. z: standard deviations above it, 0 if nothing was scored. p_value: probability of at least this mean
    in text without the watermark.
    """

    scored: int
    mean: float
    expected: float
    z: float
    p_value: float


def marked_words(tokens: Sequence[int], key: int, context_width: int) -> Words:
    """Returns the word of each token, uint32 [n], that follows a full context which occurs for the first time."""
    first: dict[tuple[int, ...], int] = {}
    for at in range(context_width, len(tokens)):
        first.setdefault(tuple(tokens[at - context_width : at]), tokens[at])
    mixers = np.array([context_mixers(key, context) for context in first], np.uint32).reshape(-1, 2)
    return token_words(np.array(list(first.values()), np.uint32), mixers[:, 0], mixers[:, 1])


def gumbel_score(tokens: Sequence[int], key: int, context_width: int = DEFAULT_WIDTH) -> DrawScore:
    """Returns the score of `GumbelWatermarkLogitsProcessor`: the mean of -ln(1 - u).

    Without the watermark its sum has a gamma distribution.
    """
    words = marked_words(tokens, key, context_width)
    scores: NDArray[np.float64] = -np.log1p(-(words + 0.5) / WORD)
    count, total = len(scores), float(scores.sum())
    if not count:
        return DrawScore(0, 0.0, 1.0, 0.0, 1.0)
    return DrawScore(count, total / count, 1.0, (total - count) / math.sqrt(count), _gamma_tail(count, total))


def synthid_score(
    tokens: Sequence[int], key: int, context_width: int = DEFAULT_WIDTH, layers: int = DEFAULT_LAYERS
) -> DrawScore:
    """Returns the score of `SynthIDWatermarkLogitsProcessor`: the mean of the tokens' bits, early rounds weigh more.

    As in Dathathri et al. 2024, the weights fall linearly from 10 to 1.
    """
    words = marked_words(tokens, key, context_width)
    weights = np.linspace(10.0, 1.0, layers)
    weights /= weights.sum()
    bits = words[:, None] >> np.arange(layers, dtype=np.uint32) & np.uint32(1)
    count = len(words)
    if not count:
        return DrawScore(0, 0.0, 0.5, 0.0, 1.0)
    mean = float((bits @ weights).mean())
    z = (mean - 0.5) / (0.5 * math.sqrt(float((weights**2).sum()) / count))
    return DrawScore(count, mean, 0.5, z, 0.5 * math.erfc(z / math.sqrt(2)))


def _gamma_tail(count: int, total: float) -> float:
    """Returns the probability that a sum of `count` exponential variables exceeds `total`."""
    # The same as fewer than `count` events of a Poisson process until `total`.
    events = np.arange(count)
    logs = events * math.log(max(total, 1e-300)) - total - np.array([math.lgamma(each + 1) for each in events])
    return min(1.0, float(np.exp(logs).sum()))
