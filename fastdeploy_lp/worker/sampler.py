"""From the chain's logits to one token a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F  # noqa: N812 - Paddle's own spelling
from numpy.typing import NDArray
from paddle import Tensor

Uint64Array = NDArray[np.uint64]


class Sampler:
    """Greedy where the temperature is 0; elsewhere temperature, top-k, top-p and a seeded draw.

    A row's token depends on its own logits, parameters, seed and position alone, never on its neighbours or its slot.
    """

    def __call__(self, logits: Tensor, share_inputs: Mapping[str, Any], slots: NDArray[np.int64]) -> Tensor:
        """Tokens [rows] of logits [rows, vocab_size], row r being slot `slots[r]`."""
        temperature = share_inputs["temperature_cpu"][slots, 0]
        random = np.flatnonzero(temperature > 0)
        if random.size == 0:
            return paddle.argmax(logits, axis=-1)
        drawn = self._draw(logits, share_inputs, slots, random)
        if random.size == len(slots):
            return drawn
        return paddle.argmax(logits, axis=-1).index_put_((paddle.to_tensor(random),), drawn)

    def _draw(
        self, logits: Tensor, share_inputs: Mapping[str, Any], slots: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> Tensor:
        chosen = logits if rows.size == len(slots) else paddle.gather(logits, paddle.to_tensor(rows))
        slots = slots[rows]
        scaled = chosen / paddle.to_tensor(share_inputs["temperature_cpu"][slots])
        uniform = seeded_uniform(
            share_inputs["seed"][slots, 0],
            (share_inputs["prompt_lens"][slots, 0] + share_inputs["step_idx"][slots, 0]).astype(np.uint64),
        )
        return _draw_by_limit(
            scaled,
            paddle.to_tensor(uniform).unsqueeze(1),
            _candidate_limits(share_inputs, slots, logits.shape[-1]),
            share_inputs["top_p_cpu"][slots],
        )


def seeded_uniform(seeds: Uint64Array, positions: Uint64Array) -> NDArray[np.float32]:
    """One number in (0, 1] for each (seed, position), from a counter-based generator.

    Two rounds of the SplitMix64 finalizer (Steele et al., 2014) over seed and position; the top 24 bits give a float32
    without rounding.
    """
    mixed = _mix(_mix(seeds) ^ (positions * np.uint64(0x9E3779B97F4A7C15)))
    return ((mixed >> np.uint64(40)).astype(np.float32) + 1) * np.float32(2.0**-24)


def _mix(x: Uint64Array) -> Uint64Array:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


ALL_UNSORTED = 0


def _candidate_limits(share_inputs: Mapping[str, Any], slots: NDArray[np.int64], vocab_size: int) -> NDArray[np.int64]:
    """How many of the most likely tokens each row draws from; ALL_UNSORTED where neither top-k nor top-p filters."""
    top_k, top_p = share_inputs["top_k_cpu"][slots, 0], share_inputs["top_p_cpu"][slots, 0]
    limits = np.where(top_k > 0, np.minimum(top_k, vocab_size), vocab_size)
    return np.where((top_k > 0) | (top_p < 1), limits, ALL_UNSORTED)


def _draw_by_limit(scaled: Tensor, uniform: Tensor, limits: NDArray[np.int64], top_p: NDArray[np.float32]) -> Tensor:
    """Rows of one limit are drawn together, and never with others: the order that `topk` gives equal logits, and the
    last bits of a softmax, change with the number of candidates."""
    distinct = np.unique(limits)
    if len(distinct) == 1:
        return _draw_rows(scaled, uniform, int(distinct[0]), top_p)
    tokens = paddle.empty([len(limits)], "int64")
    for limit in distinct:
        rows = np.flatnonzero(limits == limit)
        where = paddle.to_tensor(rows)
        part = _draw_rows(paddle.gather(scaled, where), paddle.gather(uniform, where), int(limit), top_p[rows])
        tokens.index_put_((where,), part)
    return tokens


def _draw_rows(scaled: Tensor, uniform: Tensor, limit: int, top_p: NDArray[np.float32]) -> Tensor:
    """From the `limit` most likely tokens in descending order, of those the fewest that reach `top_p` together."""
    if limit == ALL_UNSORTED:
        return _inverse_cdf(F.softmax(scaled), uniform)
    values, tokens = paddle.topk(scaled, limit)
    probs = F.softmax(values)
    before = paddle.cumsum(probs, axis=-1) - probs
    probs = paddle.where(before < paddle.to_tensor(top_p), probs, paddle.zeros_like(probs))
    return paddle.take_along_axis(tokens, _inverse_cdf(probs, uniform).unsqueeze(1), axis=1).squeeze(1)


def _inverse_cdf(probs: Tensor, uniform: Tensor) -> Tensor:
    """The first index at which the cumulated probabilities [rows, n] reach `uniform` [rows, 1] of their sum.

    With `uniform` above 0 the cumulated sum rises at that index, so it never has probability 0.
    """
    cumulated = paddle.cumsum(probs, axis=-1)
    return (cumulated < uniform * cumulated[:, -1:]).astype("int64").sum(axis=-1)
