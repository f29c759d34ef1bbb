"""What stages of a step make of one row of logits, in plain numpy, and what a trace has to say of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastdeploy_lp.logits_processor.sequence_state.uniform import seeded_uniform
from fastdeploy_lp.messages import StageNumbers
from fastdeploy_lp.request.sampling_params import SamplingParams
from support.builtins import probabilities, usable, weights, without

ONE = 2.0**32


@dataclass(frozen=True)
class Text:
    """The tokens of a request when a step begins."""

    prompt: list[int]
    output: list[int]

    @property
    def all(self) -> list[int]:
        return self.prompt + self.output


Reference = Callable[[np.ndarray, Text, dict[str, Any]], np.ndarray]
"""A row, float32 [vocab_size], its request's text and arguments, to the row behind a processor."""


def logit_bias(row: np.ndarray, _: Text, args: dict[str, Any]) -> np.ndarray:
    for token, bias in args["logit_bias"].items():
        row[token] += np.float32(bias)
    return row


def repetition(row: np.ndarray, text: Text, args: dict[str, Any]) -> np.ndarray:
    return _repetition(row, text, args["repetition_penalty"])


def presence(row: np.ndarray, text: Text, args: dict[str, Any]) -> np.ndarray:
    seen = sorted(set(text.output))
    row[seen] -= np.float32(args["presence_penalty"])
    return row


def allowed(row: np.ndarray, _: Text, args: dict[str, Any]) -> np.ndarray:
    return without(row, np.setdiff1d(np.arange(len(row)), args["allowed_token_ids"]))


def min_p(row: np.ndarray, _: Text, args: dict[str, Any]) -> np.ndarray:
    least = max(float(np.float32(args["min_p"])) * ONE, 1.0)
    return without(row, weights(row) < least)


def top_n_sigma(row: np.ndarray, _: Text, args: dict[str, Any]) -> np.ndarray:
    deviation = row[np.isfinite(row)].astype(np.float64).std()
    return without(row, row < row.max() - np.float32(args["top_n_sigma"]) * deviation)


def epsilon_cutoff(row: np.ndarray, _: Text, args: dict[str, Any]) -> np.ndarray:
    least = np.float64(np.float32(args["epsilon_cutoff"]))
    return without(row, (probabilities(row) < least) & (row < row.max()))


def no_repeat_ngram(row: np.ndarray, text: Text, args: dict[str, Any]) -> np.ndarray:
    size = args["no_repeat_ngram_size"]
    end = text.all[len(text.all) - size + 1 :]
    runs = [text.all[at : at + size] for at in range(len(text.all) - size + 1)]
    return without(row, [last for *beginning, last in runs if beginning == end])


REFERENCES: dict[str, Reference] = {
    "LogitBiasLogitsProcessor": logit_bias,
    "RepetitionPenaltyLogitsProcessor": repetition,
    "PresencePenaltyLogitsProcessor": presence,
    "AllowedTokensLogitsProcessor": allowed,
    "NoRepeatNGramLogitsProcessor": no_repeat_ngram,
    "MinPLogitsProcessor": min_p,
    "TopNSigmaLogitsProcessor": top_n_sigma,
    "EpsilonCutoffLogitsProcessor": epsilon_cutoff,
}


def penalties(row: np.ndarray, text: Text, params: SamplingParams) -> np.ndarray:
    """What the request's own sampling fields do to single logits."""
    if params.allowed_token_ids is not None:
        row = without(row, np.setdiff1d(np.arange(len(row)), params.allowed_token_ids))
    row = _repetition(row, text, params.repetition_penalty)
    row[sorted(set(text.output))] -= np.float32(params.presence_penalty)
    return row


def final(row: np.ndarray, params: SamplingParams) -> np.ndarray:
    """What is drawn from: divided by the temperature, -inf where a filter leaves a token out."""
    if params.temperature == 0:
        return without(row.copy(), np.arange(len(row)) != row.argmax())
    temperature = np.float32(params.temperature)
    scaled = (row.astype(np.float64) * (1.0 / np.float64(temperature))).astype(np.float32)
    if params.min_p > 0 or params.top_k > 0 or params.top_p < 1:
        scaled[_kept(row, params) == 0] = -np.inf
    return scaled


def sampled(row: np.ndarray, text: Text, params: SamplingParams) -> int:
    """The token that comes out of what is left of a row behind penalties."""
    if params.temperature == 0:
        return int(row.argmax())
    position = np.array([len(text.all)], np.uint64)
    uniform = seeded_uniform(np.array([params.seed], np.uint64), position)[0]
    cumulated = np.cumsum(_kept(row, params))
    return int((cumulated < np.float64(uniform) * cumulated[-1]).sum())


def check_numbers(found: StageNumbers, row: np.ndarray, before: np.ndarray | None, token: int) -> None:
    """Hold what is told of a stage against its row, the row of the stage before and the token that was sampled."""
    assert usable(row)
    share, log_sum = _shares(row)
    ranked = np.sort(row)[::-1]
    count = min(len(found.token_ids), len(row))
    assert count == min(count, int((row > -np.inf).sum()))
    np.testing.assert_allclose(found.logits, ranked[:count], rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(found.logits, row[found.token_ids], rtol=2e-6, atol=1e-6)
    assert len(set(found.token_ids)) == count
    np.testing.assert_allclose(found.log_sum, log_sum, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.entropy, -(share[share > 0] * np.log(share[share > 0])).sum(), atol=1e-5)
    moved = 0.0 if before is None else 0.5 * np.abs(share - _shares(before)[0]).sum()
    np.testing.assert_allclose(found.moved, moved, atol=1e-6)
    assert row[found.most_likely] >= row.max() - 1e-5
    assert found.rank == 1 + (row > row[token]).sum() or np.isclose(row, row[token], atol=1e-5).sum() > 1
    np.testing.assert_allclose(found.logit, row[token], rtol=2e-6, atol=1e-6)


def _repetition(row: np.ndarray, text: Text, rate: float) -> np.ndarray:
    seen = sorted(set(text.all))
    logits, own = row[seen].astype(np.float64), float(np.float32(rate))
    row[seen] = np.where(logits > 0, logits / own, logits * own)
    return row


def _kept(row: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Whole-number weights behind the filters, by sorting the row."""
    below = row.astype(np.float64) - np.float64(row.max())
    found = np.floor(np.exp(below * (1.0 / np.float64(np.float32(params.temperature)))) * ONE)
    found[found < np.float64(np.float32(params.min_p)) * ONE] = 0.0
    order = np.argsort(-row, kind="stable")
    if params.top_k > 0:
        found[order[params.top_k :]] = 0.0
    before = np.cumsum(found[order]) - found[order]
    found[order[before >= np.float64(np.float32(params.top_p)) * found.sum()]] = 0.0
    return found


def _shares(row: np.ndarray) -> tuple[np.ndarray, float]:
    """Probabilities, and the logarithm of the sum of exp(logit)."""
    exact = np.exp(row.astype(np.float64) - np.float64(row.max()))
    return exact / exact.sum(), float(np.float64(row.max()) + np.log(exact.sum()))
