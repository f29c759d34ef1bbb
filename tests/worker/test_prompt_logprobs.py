"""Prompt logprobs through the engine on a tiny model, against a forward pass over the whole text."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
from support.sequences import request, tiny_engine

from fastdeploy_lp.messages import PackedLogprobs, SequenceStep, TokenLogprobs
from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
from fastdeploy_lp.worker import prompt_logprobs
from fastdeploy_lp.worker.engine_core import EngineCore

PROMPT = [5, 9, 2, 7, 7, 1, 30, 4, 11]


def steps_of(engine: EngineCore, *requests: Any) -> dict[str, list[SequenceStep]]:
    """By request, what each step said of it."""
    for each in requests:
        engine.add(each)
    said: dict[str, list[SequenceStep]] = {}
    while engine.has_work:
        for step in engine.step().steps:
            said.setdefault(step.request_id, []).append(step)
    return said


def log_softmax_rows(token_ids: list[int]) -> np.ndarray:
    """[tokens, vocab_size]: what the model says after each token, all computed at once in an engine of its own."""
    runner = tiny_engine().runner
    chunk = SequenceChunk(np.array(token_ids), 0, np.arange(1, 9), num_outputs=len(token_ids))
    with paddle.no_grad():
        logits = runner._model.compute_logits(runner._model.forward([chunk])).numpy()
    logits = logits.astype(np.float64)
    highest = logits.max(axis=1, keepdims=True)
    return logits - highest - np.log(np.exp(logits - highest).sum(axis=1, keepdims=True))


def unpacked(packed: PackedLogprobs | None) -> list[TokenLogprobs]:
    assert packed is not None
    tokens = np.frombuffer(packed.token_ids, "<i4").reshape(-1, packed.width)
    logprobs = np.frombuffer(packed.logprobs, "<f4").reshape(-1, packed.width)
    ranks = np.frombuffer(packed.ranks, "<i4")
    return [TokenLogprobs(*each) for each in zip(tokens.tolist(), logprobs.tolist(), ranks.tolist(), strict=True)]


def check(found: list[TokenLogprobs], token_ids: list[int], count: int, rows: np.ndarray) -> None:
    """`found` belongs to `token_ids`, each predicted by the row before it."""
    assert len(found) == len(token_ids)
    for position, token, row in zip(found, token_ids, rows, strict=True):
        assert position.token_ids[0] == token
        assert len(position.token_ids) == 1 + count
        np.testing.assert_allclose(position.logprobs, row[position.token_ids], atol=1e-4)
        np.testing.assert_allclose(position.logprobs[1:], np.sort(row)[::-1][:count], atol=1e-4)
        assert position.rank == 1 + (row > row[token]).sum()


@pytest.mark.parametrize("count", [0, 3, 20])
def test_a_prompt_has_the_logprobs_of_a_forward_pass_over_it(count: int) -> None:
    said = steps_of(tiny_engine(), request("r", PROMPT, max_tokens=3, prompt_logprobs=count, logprobs=count))["r"]
    first, *later = said
    assert all(step.prompt_logprobs is None for step in later)
    output = [step.token_ids[0] for step in said]
    rows = log_softmax_rows(PROMPT + output)
    check(unpacked(first.prompt_logprobs), PROMPT[1:], count, rows[: len(PROMPT) - 1])
    check([position for step in said for position in step.logprobs or []], output, count, rows[len(PROMPT) - 1 : -1])


def test_it_is_the_same_alone_in_pieces_and_among_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request("r", PROMPT, max_tokens=2, prompt_logprobs=4)
    alone = steps_of(tiny_engine(), asked)["r"]
    neighbours = [request(f"n{i}", [i + 1] * (i + 1), max_tokens=3, temperature=1.0, seed=i) for i in range(4)]
    wanting = request("other", [3, 1, 4, 1, 5], max_tokens=1, prompt_logprobs=1)
    monkeypatch.setattr(prompt_logprobs, "PIECE_BYTES", 1)
    crowd = steps_of(tiny_engine(), *neighbours[:2], asked, *neighbours[2:], wanting)
    assert [step.token_ids for step in crowd["r"]] == [step.token_ids for step in alone]
    together, single = unpacked(crowd["r"][0].prompt_logprobs), unpacked(alone[0].prompt_logprobs)
    for one, other in zip(together, single, strict=True):
        assert (one.token_ids, one.rank) == (other.token_ids, other.rank)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
    assert len(unpacked(crowd["other"][0].prompt_logprobs)) == 4
    assert all(step.prompt_logprobs is None for name in ("n0", "n1", "n2", "n3") for step in crowd[name])


def test_a_prompt_of_one_token_has_no_predicted_one() -> None:
    (step,) = steps_of(tiny_engine(), request("r", [5], max_tokens=1, prompt_logprobs=2))["r"]
    assert unpacked(step.prompt_logprobs) == []
