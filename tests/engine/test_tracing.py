"""The worker's account of a token, spelled out."""

from __future__ import annotations

import math

import pytest
from support.tiny import write_tiny_checkpoint

from fastdeploy_lp.engine.client.token_details import count_shadows, spelled_trace
from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.messages import StageNumbers, StageTrace
from fastdeploy_lp.request.trace import ShadowReport, ShadowToken

A, B = 70, 71


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny")))


def numbers(*, most_likely: int, logit: float = 0.0, rank: int = 1) -> StageNumbers:
    return StageNumbers([A, B, 72], [1.0, 1.0, 0.0], 2.0, 0.5, 0.25, most_likely, logit, rank)


def test_a_stage_is_flipped_beside_the_last_one_that_ran(tokenizer: Tokenizer) -> None:
    stages = [
        StageTrace("raw", "model", "ran", 0.1, numbers(most_likely=A)),
        StageTrace("skips", "processor", "skipped", 0.0),
        StageTrace("same", "processor", "ran", 0.2, numbers(most_likely=A)),
        StageTrace("flips", "processor", "ran", 0.3, numbers(most_likely=B)),
        StageTrace("final", "sampling", "ran", 0.4, numbers(most_likely=B)),
    ]
    trace = spelled_trace(B, stages, None, tokenizer)
    assert [stage.flipped for stage in trace.stages] == [False, False, False, True, False]
    assert [stage.seconds for stage in trace.stages] == [0.1, 0.0, 0.2, 0.3, 0.4]
    assert (trace.stages[1].sampled, trace.stages[1].entropy, trace.stages[1].top) == (None, None, [])
    assert (trace.token_bytes.decode(), trace.shadows) == (trace.decoded_token, {})


def test_probabilities_and_ranks_follow_from_logits(tokenizer: Tokenizer) -> None:
    ruled_out = StageTrace("raw", "model", "ran", 0.0, numbers(most_likely=A, logit=-math.inf, rank=400))
    (stage,) = spelled_trace(99, [ruled_out], None, tokenizer).stages
    assert [(token.token_id, token.rank) for token in stage.top] == [(A, 1), (B, 1), (72, 3)]
    assert [token.probability for token in stage.top] == pytest.approx([math.exp(-1), math.exp(-1), math.exp(-2)])
    assert stage.sampled is not None
    assert (stage.sampled.logit, stage.sampled.probability, stage.sampled.rank) == (-math.inf, 0.0, 400)


def test_shadows_are_compared_with_the_token(tokenizer: Tokenizer) -> None:
    told = {"same": A, "other": B, "nothing": -1, "broken": None}
    assert spelled_trace(A, [], told, tokenizer).shadows == {
        "same": ShadowToken(A, tokenizer.token_text(A), changed=False),
        "other": ShadowToken(B, tokenizer.token_text(B), changed=True),
        "nothing": ShadowToken(None, None, changed=True),
        "broken": ShadowToken(None, None, changed=False, failed=True),
    }
    reports: dict[str, ShadowReport] = {}
    for _ in range(2):
        count_shadows(reports, A, told)
    assert reports == {
        "same": ShadowReport(tokens=2),
        "other": ShadowReport(tokens=2, changed=2),
        "nothing": ShadowReport(tokens=2, changed=2),
        "broken": ShadowReport(faults=2),
    }
