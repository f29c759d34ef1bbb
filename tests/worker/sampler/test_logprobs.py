"""Logprobs of sampled tokens through the whole sampler, in every mode, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
from support.row_ops import ROW_OPS, make_row_ops
from support.sequences import sequence
from support.tiny import tiny_fd_config

from fastdeploy_lp.config.model_config import LOGPROBS_MODES
from fastdeploy_lp.logits_processor.share_inputs import ShareInputs
from fastdeploy_lp.model_executor.ops.row_ops import RowOps
from fastdeploy_lp.worker.sampler import SampledRows, Sampler

VOCAB_SIZE = 50
REQUESTS: list[dict[str, Any]] = [
    {"temperature": 0.0, "logprobs": 3},
    {"temperature": 0.0},
    {"temperature": 0.7, "top_k": 5, "logprobs": 20, "seed": 1},
    {"temperature": 1.0, "logprobs": 0, "frequency_penalty": 1.5, "seed": 2},
    {"temperature": 1.3, "top_p": 0.8, "min_p": 0.01, "logprobs": 7, "bad_words_token_ids": [[3]], "seed": 3},
]
OUTPUT = [4, 4, 9]


@pytest.fixture(scope="module", params=ROW_OPS)
def ops(request: pytest.FixtureRequest) -> RowOps:
    return make_row_ops(request.param)


def random_logits(rows: int) -> np.ndarray:
    return 2 * np.random.default_rng(3).standard_normal((rows, VOCAB_SIZE), dtype=np.float32)


def run(ops: RowOps, mode: str, logits: np.ndarray, requests: list[dict[str, Any]]) -> SampledRows:
    """Row r is slot 2 * r; a processor adds 1 to token 0 between capture and sampling."""
    slots = 2 * len(requests)
    share_inputs = ShareInputs(slots, 16)
    sampler = Sampler(tiny_fd_config(max_num_seqs=slots, logprobs_mode=mode), ops)
    for row, params in enumerate(requests):
        entering = sequence([1, 2], output=OUTPUT, slot=2 * row, **params)
        share_inputs.assign(entering)
        sampler.enter(entering)
    rows = 2 * np.arange(len(requests))
    tensor = paddle.to_tensor(logits)
    sampler.capture(tensor, rows)
    tensor[:, 0] += 1.0
    return sampler(tensor, share_inputs, rows)


def processed(logits: np.ndarray, params: dict[str, Any]) -> np.ndarray:
    """One row as it is drawn from, in float64."""
    row = logits.astype(np.float64)
    row[0] += 1.0
    for token in OUTPUT:
        row[token] -= params.get("frequency_penalty", 0.0)
    row[[word[0] for word in params.get("bad_words_token_ids", [])]] = -np.inf
    if params["temperature"] == 0:
        return row
    row /= params["temperature"]
    order = np.argsort(-row, kind="stable")
    probs = np.exp(row - row.max())
    probs[probs < params.get("min_p", 0.0)] = 0.0
    probs[order[params.get("top_k", VOCAB_SIZE) :]] = 0.0
    before = np.cumsum(probs[order]) - probs[order]
    probs[order[before >= params.get("top_p", 1.0) * probs.sum()]] = 0.0
    return np.where(probs > 0, row, -np.inf)


def log_softmax(row: np.ndarray) -> np.ndarray:
    return row - row.max() - np.log(np.exp(row - row.max()).sum())


@pytest.mark.parametrize("mode", LOGPROBS_MODES)
def test_logprobs_say_what_the_mode_promises(ops: RowOps, mode: str) -> None:
    logits = random_logits(len(REQUESTS))
    sampled = run(ops, mode, logits, REQUESTS)
    assert sorted(sampled.logprobs) == [row for row, params in enumerate(REQUESTS) if "logprobs" in params]
    for row, found in sampled.logprobs.items():
        expected = processed(logits[row], REQUESTS[row]) if "processed" in mode else logits[row].astype(np.float64)
        expected = log_softmax(expected) if "logprobs" in mode else expected
        token, *top = found.token_ids
        assert token == sampled.tokens[row]
        # Tokens that are ruled out are not on the list.
        assert len(top) == min(REQUESTS[row]["logprobs"], np.isfinite(expected).sum())
        np.testing.assert_allclose(found.logprobs, expected[found.token_ids], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found.logprobs[1:], np.sort(expected)[::-1][: len(top)], rtol=1e-5, atol=1e-5)
        assert found.rank == 1 + (expected > expected[token]).sum()


@pytest.mark.parametrize("mode", LOGPROBS_MODES)
def test_asking_for_logprobs_changes_no_token(ops: RowOps, mode: str) -> None:
    logits = random_logits(len(REQUESTS))
    without = [{name: value for name, value in params.items() if name != "logprobs"} for params in REQUESTS]
    plain = run(ops, mode, logits, without)
    assert plain.logprobs == {}
    assert run(ops, mode, logits, REQUESTS).tokens.tolist() == plain.tokens.tolist()


@pytest.mark.parametrize("mode", LOGPROBS_MODES)
def test_a_row_has_the_logprobs_that_it_has_alone(ops: RowOps, mode: str) -> None:
    logits = random_logits(len(REQUESTS))
    together = run(ops, mode, logits, REQUESTS).logprobs
    for row in together:
        assert run(ops, mode, logits[row : row + 1], REQUESTS[row : row + 1]).logprobs[0] == together[row]
