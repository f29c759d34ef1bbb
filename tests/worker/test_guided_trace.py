"""Traces and shadows of rows that have a grammar, with the real masks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from paddle import Tensor
from support.grammars import TINY_EOS
from support.sequences import chain_of, request
from support.tiny import tiny_fd_config, write_tiny_checkpoint

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.guided_decoding.grammar import grammar_of
from fastdeploy_lp.logits_processor import LogitsProcessor, Selection
from fastdeploy_lp.messages import AddRequest, SequenceStep, StageTrace
from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams
from fastdeploy_lp.request.trace import TraceParams
from fastdeploy_lp.worker.engine_core import EngineCore


class SetsLogits(LogitsProcessor):
    """Gives every token of every row the same high logit, ruled out or not."""

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Any) -> None: ...

    def apply(self, logits: Tensor) -> Tensor:
        return logits.fill_(100.0)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


def run(directory: Path, *requests: AddRequest) -> dict[str, list[SequenceStep]]:
    config = tiny_fd_config(eos_token_ids=(TINY_EOS,))
    config = replace(config, model_config=replace(config.model_config, directory=str(directory)))
    engine = EngineCore(config, chain_of(["LogitBiasLogitsProcessor", SetsLogits], config))
    for each in requests:
        engine.add(each)
    steps: dict[str, list[SequenceStep]] = {}
    while engine.has_work:
        for step in engine.step().steps:
            assert step.error is None
            steps.setdefault(step.request_id, []).append(step)
    return steps


def guided(name: str, **params: Any) -> AddRequest:
    """Two digits."""
    made = request(name, [1, 2], max_tokens=4, logits_processors_trace=TraceParams(top_k=20), **params)
    made.grammar = grammar_of(GuidedDecodingParams(regex="[0-9]{2}")).text
    return made


def stages(steps: list[SequenceStep]) -> list[list[StageTrace]]:
    return [stages for step in steps for stages in step.trace or []]


def test_the_mask_is_a_stage_and_one_more_behind_processors(directory: Path) -> None:
    free = request("free", [1], max_tokens=1, logits_processors_trace=TraceParams(), selection=Selection(named={}))
    found = run(
        directory,
        guided("plain", selection=Selection(named={})),
        guided("set", selection=Selection(named={"SetsLogits": {}})),
        free,
    )
    names = {name: {tuple(stage.name for stage in each) for each in stages(steps)} for name, steps in found.items()}
    assert names == {
        "plain": {("raw", "guided_decoding", "final")},
        "set": {("raw", "guided_decoding", "SetsLogits", "guided_decoding", "final")},
        "free": {("raw", "final")},
    }


def test_what_a_processor_revives_is_ruled_out_again(directory: Path) -> None:
    found = run(directory, guided("set", temperature=1.0, seed=3, selection=Selection(named={"SetsLogits": {}})))
    first = stages(found["set"])[0]
    assert [stage.kind for stage in first] == ["model", "mask", "processor", "mask", "sampling"]
    raw, masked, revived, again, final = (stage.numbers for stage in first)
    assert None not in (raw, masked, revived, again, final)
    assert len(raw.token_ids) == len(revived.token_ids) == 20
    # Ten digits, and tokens of two of them.
    assert set(again.token_ids) == set(masked.token_ids)
    assert len(again.token_ids) < 20
    assert revived.entropy == pytest.approx(6.238, abs=1e-3)
    assert again.moved == pytest.approx(1 - len(again.token_ids) / 512)
    assert final.moved == pytest.approx(0, abs=1e-9)
    assert found["set"][0].token_ids[0] in again.token_ids


def test_a_shadow_cannot_leave_the_grammar_either(directory: Path) -> None:
    wanted = Selection(named={"SetsLogits": {}}, shadow=("SetsLogits",))
    made = [
        guided("set", temperature=1.0, seed=3, selection=wanted),
        request("free", [1], max_tokens=4, selection=wanted),
    ]
    found = run(directory, *made)
    # A mask that comes late ends the output in a step without a token.
    sampled = [step for step in found["set"] if step.token_ids]
    assert sampled
    for step in sampled:
        allowed = step.trace[0][1].numbers.token_ids if step.trace else []
        assert step.shadows is not None
        assert step.shadows[0]["SetsLogits"] in allowed
    # Of equal tokens the first.
    assert [step.shadows for step in found["free"]] == [[{"SetsLogits": 0}]] * 4
