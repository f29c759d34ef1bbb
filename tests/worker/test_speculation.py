"""Steps that verify draft tokens: the output is that of steps of one token."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import support.faulty as faulty
from support.drafters import KnowsMost
from support.processors import YourLogitsProcessor
from support.sequences import Ran, request, run_to_end, tiny_engine

from fastdeploy_lp.config.speculation import Speculation
from fastdeploy_lp.logits_processor import Selection
from fastdeploy_lp.logits_processor.builtin.logit_bias import LogitBiasLogitsProcessor
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.request.trace import TraceParams
from fastdeploy_lp.worker.drafters.drafter import Draft
from fastdeploy_lp.worker.engine_core import EngineCore
from fastdeploy_lp.worker.model_runner_base import StepResult
from fastdeploy_lp.worker.sampler import SampledRows, Sampler
from fastdeploy_lp.worker.scheduled import ScheduledChunk

KNOWN = "support.drafters:KnowsMost"
PROCESSORS = [LogitBiasLogitsProcessor, YourLogitsProcessor]
# Few enough that sequences are preempted.
FEW_BLOCKS = 30


def engine(method: str | None, processors: list[Any] | None = None, **config: Any) -> EngineCore:
    speculation = None if method is None else Speculation(method, adaptive=False)
    return tiny_engine(PROCESSORS if processors is None else processors, speculation=speculation, **config)


def varied(count: int) -> list[AddRequest]:
    """Requests of every kind; some repeat themselves, so that earlier text predicts them."""
    rng = random.Random(3)
    made = []
    for index in range(count):
        sampling: dict[str, Any] = {} if index % 3 else {"temperature": rng.choice([0.3, 1.0]), "seed": index}
        if rng.random() < 0.5:
            sampling |= {"logprobs": rng.randrange(3), "frequency_penalty": rng.choice([0.0, 0.7])}
        if rng.random() < 0.3:
            sampling["logits_processors_args"] = {"logit_bias": {rng.randrange(512): 3.0, 7: -np.inf}}
        if rng.random() < 0.3:
            sampling["stop_token_ids"] = rng.sample(range(512), 12)
        if rng.random() < 0.2:
            sampling["min_tokens"] = 5
        prompt = [rng.randrange(512) for _ in range(rng.choice([1, 4, 11]))] * rng.choice([1, 3])
        made.append(request(f"r{index}", prompt, max_tokens=rng.randrange(5, 24), **sampling))
    return made


@pytest.fixture(scope="module")
def plain() -> dict[str, Ran]:
    return run_to_end(engine(None), varied(40))


def accepted(core: EngineCore) -> int:
    return sum(stats.accepted for stats in core.load().scheduler_stats.drafts)


@pytest.mark.parametrize(
    ("method", "config"),
    [
        (KNOWN, {}),
        ("ngram", {}),
        ("auto", {}),
        (KNOWN, {"num_blocks": FEW_BLOCKS}),
        ("auto", {"num_blocks": FEW_BLOCKS}),
        (KNOWN, {"max_num_seqs": 3}),
        ("ngram", {"max_num_batched_tokens": 13}),
        ("auto", {"block_size": 16}),
    ],
    ids=str,
)
def test_tokens_and_logprobs_are_those_of_single_steps(
    plain: dict[str, Ran], monkeypatch: pytest.MonkeyPatch, method: str, config: dict[str, Any]
) -> None:
    monkeypatch.setattr(KnowsMost, "outputs", {name: ran.token_ids for name, ran in plain.items()})
    core = engine(method, **config)
    assert run_to_end(core, varied(40)) == plain
    assert accepted(core) > 0


def test_a_step_yields_several_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    made = request("r", [1, 2, 3], max_tokens=9)
    alone = run_to_end(engine(None), [made])["r"]
    monkeypatch.setattr(KnowsMost, "outputs", {"r": alone.token_ids})
    monkeypatch.setattr(KnowsMost, "wrong", 0.0)
    core = engine(KNOWN)
    core.add(made)
    core.step()
    while core.has_work:
        steps = core.step().steps
        assert len(steps) == 1
        assert steps[0].accepted == len(steps[0].token_ids) - 1
        assert steps[0].drafted >= steps[0].accepted
    stats = core.load().scheduler_stats.drafts[0]
    assert (stats.kind, stats.accepted) == ("known", sum(stats.accepted_at))
    assert stats.accepted > 0


@pytest.mark.parametrize(
    ("fields", "in_rounds"),
    [
        ({}, False),
        ({"temperature": 0.8, "top_p": 0.9, "seed": 5}, False),
        ({"frequency_penalty": 0.5}, True),
        ({"min_tokens": 3, "stop_token_ids": [500]}, True),
        ({"logprobs": 0}, True),
        ({"logits_processors_args": {"logit_bias": {5: 1.0}}}, True),
        ({"logits_processors_trace": TraceParams(top_k=1)}, True),
    ],
)
def test_only_what_depends_on_earlier_tokens_takes_rounds(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], in_rounds: bool
) -> None:
    made = [request("r", [1, 2, 3], max_tokens=12, **fields), request("other", [9, 4], max_tokens=12)]
    alone = run_to_end(engine(None, [LogitBiasLogitsProcessor]), made)
    monkeypatch.setattr(KnowsMost, "outputs", {name: ran.token_ids for name, ran in alone.items()})
    core = engine(KNOWN, [LogitBiasLogitsProcessor])
    verified: list[str] = []
    verify = core.worker.verify

    def noting(chunks: list[ScheduledChunk]) -> StepResult:
        verified.extend(chunk.sequence.request_id for chunk in chunks)
        return verify(chunks)

    monkeypatch.setattr(core.worker, "verify", noting)
    assert run_to_end(core, made) == alone
    assert set(verified) == ({"r"} if in_rounds else set())
    assert accepted(core) > 0


@pytest.mark.parametrize(
    ("fields", "samples"), [({}, False), ({"temperature": 0.8, "seed": 5}, False), ({"logprobs": 0}, True)], ids=str
)
def test_next_tokens_are_drawn_with_the_drafts_unless_a_request_needs_each_token(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], samples: bool
) -> None:
    made = [request("r", [1, 2, 3], max_tokens=12), request("other", [9, 4], max_tokens=12, **fields)]
    alone = run_to_end(engine(None, [LogitBiasLogitsProcessor]), made)
    monkeypatch.setattr(KnowsMost, "outputs", {name: ran.token_ids for name, ran in alone.items()})
    core = engine(KNOWN, [LogitBiasLogitsProcessor])
    sampled: list[Sampler] = []
    call = Sampler.__call__

    def noting(sampler: Sampler, *args: Any, **keywords: Any) -> SampledRows:
        sampled.append(sampler)
        return call(sampler, *args, **keywords)

    monkeypatch.setattr(Sampler, "__call__", noting)
    for each in made:
        core.add(each)
    core.step()
    with_drafts, drafted = 0, 0
    while core.scheduler.num_running == len(made):
        sampled.clear()
        core.step()
        before, drafted = drafted, sum(stats.tokens for stats in core.load().scheduler_stats.drafts)
        if drafted > before:
            with_drafts += 1
            assert bool(sampled) == samples
    assert with_drafts


def test_a_step_whose_trace_ends_has_as_many_stages_as_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    made = request("r", [1, 2, 3], max_tokens=9, logits_processors_trace=TraceParams(max_tokens=4))
    tokens = run_to_end(engine(None), [made])["r"].token_ids
    monkeypatch.setattr(KnowsMost, "outputs", {"r": tokens})
    core = engine(KNOWN)
    core.add(made)
    steps = [step for _ in range(9) if core.has_work for step in core.step().steps]
    assert [len(step.trace) for step in steps if step.trace is not None] == [
        len(step.token_ids) for step in steps if step.trace is not None
    ]
    assert sum(len(step.trace or ()) for step in steps) == 4
    assert [token for step in steps for token in step.token_ids] == tokens
    assert len(steps) < len(tokens)


def test_a_request_without_speculation_has_no_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KnowsMost, "outputs", {"r": [5] * 20})
    core = engine(KNOWN)
    run_to_end(core, [request("r", [1, 2, 3], max_tokens=9, speculative=False)])
    assert core.load().scheduler_stats.drafts == []


def ended(core: EngineCore, requests: list[AddRequest]) -> dict[str, tuple[list[int], str | None]]:
    """Tokens and error of each request."""
    found: dict[str, tuple[list[int], str | None]] = {each.request_id: ([], None) for each in requests}
    for each in requests:
        core.add(each)
    core.finish_preparing()
    while core.has_work:
        for step in core.step().steps:
            found[step.request_id] = (found[step.request_id][0] + step.token_ids, step.error)
    return found


@pytest.mark.parametrize("wrong", [0.0, 0.3])
def test_a_fault_in_a_later_round_ends_its_request_alone(monkeypatch: pytest.MonkeyPatch, wrong: float) -> None:
    monkeypatch.setattr(faulty.Fault, "mode", "raise")
    uses = {index: Selection(named={"Request": {"fail": index == 3}}) for index in (2, 3)}
    requests = [request(f"r{index}", [index + 1, 5, 9], max_tokens=9, selection=uses.get(index)) for index in range(6)]
    expected = ended(engine(None, [faulty.Request]), requests)
    victim = expected["r3"]
    assert len(victim[0]) == faulty.FAULT_STEP
    assert victim[1] is not None
    # The victim's draft passes the token at which it fails.
    known = {name: tokens + [1] * 9 for name, (tokens, _) in expected.items()}
    monkeypatch.setattr(KnowsMost, "outputs", known)
    monkeypatch.setattr(KnowsMost, "wrong", wrong)
    core = engine(KNOWN, [faulty.Request])
    assert ended(core, requests) == expected
    assert accepted(core) > 0


def test_a_prompt_that_ends_with_a_chunk_of_one_token_keeps_its_logprobs(monkeypatch: pytest.MonkeyPatch) -> None:
    budget, made = 13, request("r", list(range(1, 15)), max_tokens=6, prompt_logprobs=1)

    def prompt_logprobs(core: EngineCore) -> list[Any]:
        core.add(made)
        return [step.prompt_logprobs for _ in range(9) if core.has_work for step in core.step().steps]

    expected = prompt_logprobs(engine(None, max_num_batched_tokens=2 * budget))
    monkeypatch.setattr(KnowsMost, "draft", lambda _, __, count: Draft([5] * count, "known"))
    found = prompt_logprobs(engine(KNOWN, max_num_batched_tokens=2 * budget))
    assert found[0] == expected[0] is not None


def test_each_drafted_token_has_its_trace(plain: dict[str, Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    made = request(
        "r",
        [1, 2, 3],
        max_tokens=9,
        logits_processors_trace=TraceParams(top_k=2),
        logits_processors_args={"logit_bias": {5: 1.0}},
    )

    def traces(core: EngineCore) -> list[Any]:
        core.add(made)
        found = []
        while core.has_work:
            found += [each for step in core.step().steps for each in step.trace or ()]
        return [[(stage.name, stage.kind, stage.status, stage.numbers) for stage in each] for each in found]

    expected = traces(engine(None))
    tokens = run_to_end(engine(None), [made])["r"].token_ids
    monkeypatch.setattr(KnowsMost, "outputs", {"r": tokens})
    core = engine(KNOWN)
    assert traces(core) == expected
    assert accepted(core) > 0
