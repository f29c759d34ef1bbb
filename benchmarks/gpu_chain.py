"""Results of the builtin processors and the sampler's operators on fixed logits, on this process's device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.testing.harness import ProcessorHarness
from fastdeploy_lp.model_executor.ops.row_ops import Draws, Penalties
from fastdeploy_lp.model_executor.ops.row_selection import row_ops

STEPS, ROWS, VOCAB = 4, 7, 1500
# By builtin, arguments with which it has an effect.
BUILTINS: dict[str, dict[str, Any]] = {
    "LogitBias": {"logit_bias": {3: 2.5, 9: -np.inf}},
    "AllowedTokens": {"allowed_token_ids": [4, 5, 6]},
    "CiteFromPrompt": {"cite_boost": 1.0, "cite_conditional_boost": 2.0},
    "ForcedSequence": {"forced_sequence": [5, 6, 7]},
    "RepetitionPenalty": {"repetition_penalty": 1.3},
    "MinP": {"min_p": 0.05},
    "EpsilonCutoff": {"epsilon_cutoff": 0.001},
    "EtaCutoff": {"eta_cutoff": 0.001},
    "TopNSigma": {"top_n_sigma": 1.0},
    "TypicalP": {"typical_p": 0.5},
    "ThinkingBudget": {"thinking_budget": 1, "think_start": [[2]], "think_end": [[3, 4]]},
    "Watermark": {"watermark_key": 5},
}


def outcome() -> dict[str, NDArray[Any]]:
    """Rows, tokens and logprobs by name; the same on every device, within the rounding of their arithmetic."""
    return {name: array for part in (_of_builtins(), _of_the_sampler()) for name, array in part}


def _of_builtins() -> Iterator[tuple[str, NDArray[Any]]]:
    for noun, args in BUILTINS.items():
        harness = ProcessorHarness(f"{noun}LogitsProcessor")
        harness.enter("using", args, prompt=(5, 6, 7, 5))
        harness.enter("not-using")
        for step in range(STEPS):
            rows = harness.step(tokens={"using": 2 + step, "not-using": 9})
            for request, row in rows.items():
                yield f"{noun} {request} {step}", row


def _of_the_sampler() -> Iterator[tuple[str, NDArray[Any]]]:
    random = np.random.default_rng(11)
    host = 4 * random.standard_normal((ROWS, VOCAB), np.float32)
    ops = row_ops()
    draws = Draws(
        temperature=np.array([0, 1, 0.7, 1.3, 1, 0.2, 1], np.float32),
        min_p=np.array([0, 0, 0.02, 0, 0.1, 0, 0], np.float32),
        top_k=np.array([0, 0, 0, 40, 5, 0, 1], np.int64),
        top_p=np.array([1, 1, 1, 0.9, 1, 0.8, 1], np.float32),
        uniform=random.uniform(0.01, 1, ROWS).astype(np.float32),
    )
    tokens = ops.draw(paddle.to_tensor(host), draws, guard=True)
    yield "drawn tokens", tokens.numpy()
    yield "filtered logits", ops.filtered(paddle.to_tensor(host), draws).numpy()
    found = ops.logprobs(paddle.to_tensor(host), tokens, 5, normalize=True)
    yield "logprobs", found.values.numpy()
    yield "ranks", found.ranks.numpy()
    penalized = paddle.to_tensor(host)
    counted = [(np.arange(row, row + 3), np.arange(3)) for row in range(ROWS)]
    ops.penalize(penalized, Penalties.of(range(ROWS), counted, [(1.2, 0.5, 0.1)] * ROWS))
    yield "penalized logits", penalized.numpy()
