"""Draws from rows of logits, and their statistics, with Paddle's own operators, on any device."""

from __future__ import annotations

import numpy as np
import paddle
from paddle import Tensor

from fastdeploy_lp.model_executor.ops.paddle_edits import LOWEST, ONE, PaddleRowEdits, can_be_drawn_from, cumsum
from fastdeploy_lp.model_executor.ops.row_ops import (
    Draws,
    Floats,
    Int64s,
    RowDistributions,
    RowLogprobs,
    RowOps,
)
from fastdeploy_lp.platforms import to_device, write_rows
from fastdeploy_lp.request.limits import MAX_LOGPROBS

# Digits, from the highest, by which `_keep_top_p` finds a 32-bit key: (shift, bits).
DIGITS = ((21, 11), (10, 11), (0, 10))


class PaddleRowOps(PaddleRowEdits, RowOps):
    """The reference; slower on a CPU than compiled operators, because Paddle's reductions use one thread there."""

    def draw(self, logits: Tensor, draws: Draws, *, guard: bool) -> Tensor:
        """As the interface says."""
        random = np.flatnonzero(draws.temperature > 0)
        if random.size == 0:
            tokens = paddle.argmax(logits, axis=-1)
        elif random.size == len(draws.temperature):
            tokens = _draw_random(logits, draws)
        else:
            where = to_device(random)
            drawn = _draw_random(paddle.gather(logits, where), draws.of(random))
            tokens = paddle.argmax(logits, axis=-1)
            write_rows(tokens, where, drawn)
        if not guard:
            return tokens
        # The maximum is NaN if any logit is.
        usable = can_be_drawn_from(logits.max(axis=-1))
        return paddle.where(usable, tokens, paddle.full_like(tokens, -1))

    def filtered(self, logits: Tensor, draws: Draws) -> Tensor:
        """As the interface says."""
        result = logits.clone()
        random = np.flatnonzero(draws.temperature > 0)
        if random.size == 0:
            return result
        where, chosen = to_device(random), draws.of(random)
        part = paddle.gather(logits, where)
        scaled = (part.astype("float64") * _inverse(chosen)).astype("float32")
        filtering = (chosen.min_p > 0) | (chosen.top_k > 0) | (chosen.top_p < 1)
        left_out = (_kept_weights(part, chosen) == 0) & to_device(filtering).unsqueeze(1)
        write_rows(result, where, paddle.where(left_out, paddle.full_like(scaled, -np.inf), scaled))
        return result

    def logprobs(self, logits: Tensor, chosen: Tensor, count: int, *, normalize: bool) -> RowLogprobs:
        """As the interface says; of equal tokens at the end of the list Paddle decides which ones are on it."""
        chosen = chosen.clip(min=0).unsqueeze(1)
        own = paddle.take_along_axis(logits, chosen, axis=1)
        ranks = (logits > own).astype("int64").sum(axis=-1) + 1
        # Always as many, so that a row's list does not depend on what its neighbours ask for.
        values, tokens = paddle.topk(logits, min(MAX_LOGPROBS, logits.shape[-1]))
        values = paddle.concat([own, values[:, :count]], axis=1)
        tokens = paddle.concat([chosen, tokens[:, :count]], axis=1)
        if normalize:
            norm = paddle.logsumexp(logits.astype("float64"), axis=-1, keepdim=True)
            values = (values.astype("float64") - norm).astype("float32")
        return RowLogprobs(values, tokens, ranks)

    def copy_rows(self, logits: Tensor, rows: Int64s, into: Tensor, at: int) -> None:
        """As the interface says."""
        into[at : at + len(rows)] = paddle.gather(logits, to_device(rows)).astype("float32")

    def compare(self, logits: Tensor, before: Int64s) -> RowDistributions:
        """As the interface says."""
        wide = logits.astype("float64")
        highest = wide.max(axis=-1, keepdim=True)
        below = (wide - highest).clip(min=LOWEST)
        weights = paddle.exp(below)
        total = weights.sum(axis=-1, keepdim=True)
        shares = weights / total
        earlier = paddle.gather(shares, to_device(np.maximum(before, 0)))
        first = to_device(before < 0)
        moved = 0.5 * (shares - earlier).abs().sum(axis=-1)
        return RowDistributions(
            log_sums=(highest + paddle.log(total)).squeeze(-1),
            entropies=paddle.log(total).squeeze(-1) - (shares * below).sum(axis=-1),
            moved=paddle.where(first, paddle.zeros_like(moved), moved),
            most_likely=paddle.argmax(logits, axis=-1),
        )


def _draw_random(logits: Tensor, draws: Draws) -> Tensor:
    """The first token, by id, at which the kept weights reach `uniform` of their sum."""
    cumulated = cumsum(_kept_weights(logits, draws))
    target = _column(draws.uniform) * cumulated[:, -1:]
    return (cumulated < target).astype("int64").sum(axis=-1)


def _kept_weights(logits: Tensor, draws: Draws) -> Tensor:
    """Weights, float64 [rows, vocab_size], 0 for what the filters leave out."""
    highest = logits.max(axis=-1, keepdim=True)
    by_count = np.flatnonzero(draws.top_k > 0)
    by_mass = np.flatnonzero((draws.top_k == 0) & (draws.top_p < 1))
    weights = _weights(logits, highest, draws)
    if by_count.size == len(draws.top_k):
        return _keep_top_k(logits, weights, draws)
    if by_mass.size == len(draws.top_k):
        return _keep_top_p(logits, weights, draws)
    for rows, keep in ((by_count, _keep_top_k), (by_mass, _keep_top_p)):
        if rows.size:
            at = to_device(rows)
            part = keep(paddle.gather(logits, at), paddle.gather(weights, at), draws.of(rows))
            write_rows(weights, at, part)
    return weights


def _weights(logits: Tensor, highest: Tensor, draws: Draws) -> Tensor:
    """exp((logit - highest) / temperature) in whole steps of 2^-32, 0 where min-p leaves a token out."""
    below = logits.astype("float64") - highest.astype("float64")
    weights = paddle.floor(paddle.exp(below * _inverse(draws)) * ONE)
    if not draws.min_p.any():
        return weights
    return paddle.where(weights >= _column(draws.min_p) * ONE, weights, paddle.zeros_like(weights))


def _keep_top_k(logits: Tensor, weights: Tensor, draws: Draws) -> Tensor:
    """Top-k, and top-p of what it leaves."""
    limits = np.minimum(draws.top_k, logits.shape[-1])
    values, _ = paddle.topk(logits, int(limits.max()))
    within = paddle.arange(values.shape[-1]).unsqueeze(0) < to_device(limits).unsqueeze(1)
    ranked = paddle.where(within, _weights(values, values[:, :1], draws), paddle.zeros(values.shape, "float64"))
    cumulated = cumsum(ranked)
    mass = _column(draws.top_p) * cumulated[:, -1:]
    count = (cumulated - ranked < mass).astype("int64").sum(axis=-1, keepdim=True).clip(min=1)
    last = paddle.take_along_axis(values, count - 1, axis=1)
    ties = count - (logits > last).astype("int64").sum(axis=-1, keepdim=True)
    equal = logits == last
    kept = (logits > last) | (equal & (cumsum(equal.astype("int64")) <= ties))
    return paddle.where(kept, weights, paddle.zeros_like(weights))


def _keep_top_p(logits: Tensor, weights: Tensor, draws: Draws) -> Tensor:
    """Top-p of the whole row: the last logit that is kept is found digit by digit of its bits, without sorting."""
    keys = _descending_keys(logits)
    mass = _column(draws.top_p) * weights.sum(axis=-1, keepdim=True)
    before, last = paddle.zeros_like(mass), paddle.zeros(mass.shape, "int64")
    equal, nothing = weights, paddle.zeros_like(weights)
    for shift, bits in DIGITS:
        digits = (keys // 2**shift) % 2**bits
        sums = paddle.put_along_axis(
            paddle.zeros([logits.shape[0], 2**bits], "float64"), digits, equal, axis=1, reduce="add"
        )
        cumulated = before + cumsum(sums)
        digit = (cumulated < mass).astype("int64").sum(axis=-1, keepdim=True).clip(max=2**bits - 1)
        before = paddle.take_along_axis(cumulated - sums, digit, axis=1)
        equal = paddle.where(digits == digit, equal, nothing)
        last = last + digit * 2**shift
    earlier = cumsum((equal > 0).astype("float64")) - 1
    kept = (keys < last) | ((equal > 0) & (before + earlier * equal < mass))
    return paddle.where(kept, weights, nothing)


def _descending_keys(logits: Tensor) -> Tensor:
    """Whole numbers below 2^32 in the opposite order of the logits; int64, the shape of `logits`."""
    # Adding 0 makes one zero of the two.
    bits = (logits.astype("float32") + 0.0).view("int32").astype("int64")
    ascending = paddle.where(bits >= 0, bits + 2**31, -1 - bits)
    return 2**32 - 1 - ascending


def _inverse(draws: Draws) -> Tensor:
    return to_device(1.0 / draws.temperature.astype(np.float64)).unsqueeze(1)


def _column(values: Floats) -> Tensor:
    return to_device(values.astype(np.float64)).unsqueeze(1)
