"""Faults of processors in a later round of verification: each position shows what a plain step there would show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import support.faulty as faulty
import support.faulty_torch as faulty_torch
from support.drafters import KnowsMost
from support.sequences import chain_of, request
from support.stand_ins import vllm_stand_ins
from support.tiny import tiny_fd_config

from fastdeploy_lp.config import StructuredOutputsConfig
from fastdeploy_lp.config.speculation import Speculation
from fastdeploy_lp.logits_processor import Selection
from fastdeploy_lp.messages import AddRequest, SequenceStep, StageTrace
from fastdeploy_lp.request.trace import FAILED, TraceParams
from fastdeploy_lp.worker.drafters.drafter import Draft
from fastdeploy_lp.worker.engine_core import EngineCore
from fastdeploy_lp.worker.sequence import Sequence

KNOWN = "support.drafters:KnowsMost"
BIAS = "LogitBiasLogitsProcessor"
# The first token comes with the prompt; the next step's rounds 0 and 1 come before the fault.
ROUND = 2
FAULT_AT = 1 + ROUND
MAX_TOKENS = 9
VICTIM = 3
# The trace names a processor that failed as a whole; of the others the row of one request failed.
AS_A_WHOLE = ("Native", "Vllm", "Mrv2", "TorchVllm", "TorchMrv2")
DIALECTS = ["Native", "Vllm", "Mrv2", "Request", "Plugin", "HuggingFace", "TorchVllm", "TorchMrv2"]


@pytest.fixture(params=DIALECTS)
def processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str | type]:
    """The failing processor of each dialect, which fails at FAULT_AT tokens."""
    monkeypatch.setattr(faulty.Fault, "mode", "raise")
    for module in (faulty, faulty_torch):
        monkeypatch.setattr(module, "FAULT_STEP", FAULT_AT)
    with vllm_stand_ins() if request.param.startswith("Torch") else nullcontext():
        if request.param == "Plugin":
            yield "support.faulty:PLUGIN"
        elif request.param == "HuggingFace":
            yield faulty_torch.HuggingFace
        elif request.param.startswith("Torch"):
            yield faulty_torch.torch_vllm_classes()[request.param]
        else:
            yield getattr(faulty, request.param)


@dataclass
class Told:
    """Everything that the worker sends of one request; `at_once`: tokens of each step of the engine."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    traces: list[list[Any]] = field(default_factory=list)
    shadows: list[Any] = field(default_factory=list)
    error: str | None = None
    finish_reason: str | None = None
    at_once: list[int] = field(default_factory=list, compare=False)

    def take(self, step: SequenceStep) -> None:
        self.tokens += step.token_ids
        self.logprobs += step.logprobs or []
        self.traces += [[_without_seconds(stage) for stage in stages] for stages in step.trace or []]
        self.shadows += step.shadows or []
        self.error, self.finish_reason = step.error, step.finish_reason

    @property
    def failed_at(self) -> list[int]:
        """Positions whose trace has a failed stage."""
        return [place for place, stages in enumerate(self.traces) if any(each[2] == FAILED for each in stages)]


def _without_seconds(stage: StageTrace) -> tuple[Any, ...]:
    return stage.name, stage.kind, stage.status, stage.numbers


def engine(processor: str | type, on_error: str, *, drafts: bool) -> tuple[EngineCore, str]:
    """The engine, and the processor's name."""
    config = tiny_fd_config(
        policy=StructuredOutputsConfig(on_error=on_error),
        speculation=Speculation(KNOWN, adaptive=False) if drafts else None,
    )
    chain = chain_of([BIAS, processor], config)
    return EngineCore(config, chain), list(chain.stats)[-1]


def requests_for(name: str, *, shadow: bool) -> list[AddRequest]:
    """Six, greedy and sampled, traced and with a processor in shadow; the victim alone uses the failing one."""
    made = []
    for index in range(6):
        named: dict[str, dict[str, Any]] = {BIAS: {"logit_bias": {7 * index: 4.0}}}
        if index == VICTIM:
            named[name] = {"fail": True}
        in_shadow = (name,) if shadow and index == VICTIM else (BIAS,) if index % 2 else ()
        made.append(
            request(
                f"r{index}",
                [index + 1, 5, 9],
                max_tokens=MAX_TOKENS,
                temperature=float(index % 3 > 0),
                seed=index,
                logprobs=2,
                logits_processors_trace=TraceParams(top_k=2),
                selection=Selection(named=named, shadow=in_shadow),
            )
        )
    return made


def told(core: EngineCore, requests: list[AddRequest]) -> dict[str, Told]:
    found = {each.request_id: Told() for each in requests}
    for each in requests:
        core.add(each)
    assert core.finish_preparing() == []
    while core.has_work:
        steps = core.step().steps
        for step in steps:
            found[step.request_id].take(step)
        for name in {step.request_id for step in steps}:
            found[name].at_once.append(sum(len(step.token_ids) for step in steps if step.request_id == name))
    return found


def both(
    processor: str | type, monkeypatch: pytest.MonkeyPatch, on_error: str, *, shadow: bool = False
) -> tuple[dict[str, Told], dict[str, Told]]:
    """Without and with drafts of the whole output, which for the victim are longer than it."""
    plain_engine, name = engine(processor, on_error, drafts=False)
    requests = requests_for(name, shadow=shadow)
    plain = told(plain_engine, requests)

    def draft(_: KnowsMost, sequence: Sequence, count: int) -> Draft:
        known = plain[sequence.request_id].tokens + [1] * MAX_TOKENS
        place = len(sequence.output_token_ids)
        return Draft(known[place : place + count], "known")

    monkeypatch.setattr(KnowsMost, "draft", draft)
    return plain, told(engine(processor, on_error, drafts=True)[0], requests)


def test_a_fault_in_round_two_ends_its_request_alone(processor: str | type, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, drafted = both(processor, monkeypatch, "fail")
    assert drafted == plain
    victim = drafted[f"r{VICTIM}"]
    assert victim.error is not None
    assert "broken by a test" in victim.error
    assert len(victim.tokens) == FAULT_AT
    # The fault came in the step that had verified two tokens of its draft.
    assert victim.at_once == [1, ROUND]
    for index, each in enumerate(drafted.values()):
        if index != VICTIM:
            assert (each.error, each.finish_reason) == (None, "length")
            assert each.at_once == [1, MAX_TOKENS - 1]
            assert len(each.tokens) == len(each.logprobs) == len(each.traces) == MAX_TOKENS
            assert len(each.shadows) == (MAX_TOKENS if index % 2 else 0)


def test_a_skipped_fault_shows_in_the_trace_of_its_position_alone(
    processor: str | type, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, drafted = both(processor, monkeypatch, "skip")
    assert drafted == plain
    victim = drafted[f"r{VICTIM}"]
    assert victim.at_once == [1, MAX_TOKENS - 1]
    as_a_whole = isinstance(processor, type) and processor.__name__ in AS_A_WHOLE
    assert victim.failed_at == ([FAULT_AT] if as_a_whole else [])
    assert [each.failed_at for each in drafted.values() if each is not victim] == [[]] * 5


def test_a_fault_in_shadow_shows_in_its_position_alone(processor: str | type, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, drafted = both(processor, monkeypatch, "fail", shadow=True)
    assert drafted == plain
    victim = drafted[f"r{VICTIM}"]
    assert (victim.error, victim.at_once) == (None, [1, MAX_TOKENS - 1])
    (shadowed,) = {name for each in victim.shadows for name in each}
    assert [place for place, each in enumerate(victim.shadows) if each[shadowed] is None] == [FAULT_AT]
