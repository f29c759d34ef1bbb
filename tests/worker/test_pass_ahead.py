"""Passes that a device runs before the host knows their tokens: the same answers, and the order of calls."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paddle import Tensor
from support.device_like import device_like
from support.grammars import TINY_EOS
from support.sequences import chain_of, pooling, request, run_to_end
from support.tiny import tiny_fd_config, write_tiny_checkpoint

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.guided_decoding.grammar import grammar_of
from fastdeploy_lp.logits_processor import LogitsProcessor, Selection
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.model_executor.models.decoder import DecoderForCausalLM
from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams
from fastdeploy_lp.worker.engine_core import EngineCore
from fastdeploy_lp.worker.pass_ahead import PassAhead

PROCESSORS = ["LogitBiasLogitsProcessor", "support.acting:Acts", "support.rewinding:Rewinds"]
DIGITS = grammar_of(GuidedDecodingParams(regex="[0-9]{2,6}")).text


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_checkpoint(Path(tmp_path_factory.mktemp("tiny"))))


def engine_of(directory: str, processors: Sequence[str | type], *, overlap: bool, **config: Any) -> EngineCore:
    made = tiny_fd_config(eos_token_ids=(TINY_EOS,), **config)
    made = replace(
        made,
        model_config=replace(made.model_config, directory=directory),
        device_config=replace(made.device_config, overlap=overlap),
    )
    return EngineCore(made, chain_of(processors, made))


def drawn_request(rng: random.Random, index: int) -> AddRequest:
    """Of any kind: pooled, guided, with logprobs and penalties, ended or rewound by a processor, ended by a token."""
    prompt = [rng.randrange(3, 200) for _ in range(rng.randrange(1, 14))]
    if rng.random() < 0.1:
        return pooling(f"r{index}", prompt, rng.choice(["mean", "last"]))
    params: dict[str, Any] = {"temperature": rng.choice([0.0, 0.9]), "seed": index, "max_tokens": rng.randrange(1, 24)}
    if rng.random() < 0.2:
        params |= {"logprobs": 2, "repetition_penalty": 1.2}
    if rng.random() < 0.2:
        params |= {"prompt_logprobs": 1}
    if rng.random() < 0.3:
        params |= {"stop_token_ids": rng.sample(range(3, 512), 200)}
    named: dict[str, Any] = {}
    if rng.random() < 0.3:
        named["Acts"] = {"finish_at": rng.randrange(1, 8), "emit_at": [1, 3]}
    if rng.random() < 0.3:
        named["Rewinds"] = {"forbids": [[token] for token in rng.sample(range(3, 512), 100)]}
    made = request(f"r{index}", prompt, selection=Selection(named=named), **params)
    if rng.random() < 0.2:
        made.grammar = DIGITS
    return made


@dataclass
class Told:
    """What steps have told, by request; logprobs apart, since the size of a batch changes their last bits."""

    steps: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    logprobs: dict[str, list[float]] = field(default_factory=dict)


def churned(engine: EngineCore, seed: int, count: int = 20) -> Told:
    """Requests that come at random steps, some of which are aborted; returns everything that steps tell of the others.

    Aborted ones are left out: when a token comes depends on the course of the steps.
    """
    rng, told = random.Random(seed), Told()
    coming = [drawn_request(rng, index) for index in range(count)]
    aborted = {each.request_id for each in coming if rng.random() < 0.1}
    while coming or engine.has_work:
        for _ in range(rng.choice([0, 0, 0, 1, 3])):
            if coming:
                engine.add(coming.pop())
        engine.finish_preparing()
        if rng.random() < 0.1:
            engine.abort(aborted)
        for step in engine.step().steps if engine.has_work else ():
            if step.request_id in aborted:
                continue
            listed = [each.token_ids for each in step.logprobs or ()]
            told.steps.setdefault(step.request_id, []).append(
                (step.token_ids, step.finish_reason, step.error, step.emitted, listed, step.pooled is None)
            )
            for each in step.logprobs or ():
                told.logprobs.setdefault(step.request_id, []).extend(each.logprobs)
    return told


@pytest.mark.parametrize(
    "config",
    [{}, {"max_num_seqs": 3, "max_num_batched_tokens": 7}, {"num_blocks": 17}, {"enable_prefix_caching": False}],
    ids=["plenty", "prompts in chunks", "few blocks", "no shared blocks"],
)
def test_the_same_answers_whatever_becomes_of_the_requests(config: dict[str, Any], directory: str) -> None:
    taken = preemptions = 0
    for seed in range(2):
        with device_like():
            expected = churned(engine_of(directory, PROCESSORS, overlap=False, **config), seed)
        with device_like(), counted_passes() as passes:
            engine = engine_of(directory, PROCESSORS, overlap=True, **config)
            found = churned(engine, seed)
        assert found.steps == expected.steps
        assert found.logprobs.keys() == expected.logprobs.keys() != set()
        for name, logprobs in expected.logprobs.items():
            np.testing.assert_allclose(found.logprobs[name], logprobs, atol=1e-4)
        taken += passes.taken
        preemptions += engine.scheduler.num_preemptions
    assert taken > 20
    assert (preemptions > 0) is ("num_blocks" in config)


@dataclass
class Passes:
    """How many passes ran ahead, and how many of them a step has used."""

    begun: int = 0
    taken: int = 0


@contextmanager
def counted_passes() -> Iterator[Passes]:
    passes = Passes()
    begin, take = PassAhead.begin, PassAhead.take

    def begins(self: PassAhead, *args: Any) -> None:
        passes.begun += 1
        begin(self, *args)

    def takes(self: PassAhead, *args: Any) -> Tensor | None:
        taken = take(self, *args)
        passes.taken += taken is not None
        return taken

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PassAhead, "begin", begins)
        patch.setattr(PassAhead, "take", takes)
        yield passes


class SeesTokens(LogitsProcessor):
    """Notes in `calls` the number of tokens that it sees."""

    keeps_rows_valid = True
    calls: list[str]

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        (slot, *_) = np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist()
        self.calls.append(f"sees {len(share_inputs['output_token_ids'][slot])}")

    def apply(self, logits: Tensor) -> Tensor:
        return logits


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of models and of SeesTokens, in order."""
    calls: list[str] = []
    monkeypatch.setattr(SeesTokens, "calls", calls, raising=False)
    for name in ("forward", "forward_ahead"):
        compute = getattr(DecoderForCausalLM, name)

        def computing(*args: Any, _compute: Any = compute, _name: str = name) -> Tensor:
            calls.append(_name)
            result: Tensor = _compute(*args)
            return result

        monkeypatch.setattr(DecoderForCausalLM, name, computing)
    return calls


def test_the_next_pass_is_queued_before_the_tokens_are_read(watched: list[str], directory: str) -> None:
    """Processors see each token before the chain runs for the next one, as without a pass ahead."""
    with device_like() as platform:
        engine = engine_of(directory, [SeesTokens], overlap=True)
        platform.queue.on_read = lambda: watched.append("read")
        engine.add(request("r", [5, 6, 7], max_tokens=4, ignore_eos=True))
        watched.clear()
        while engine.has_work:
            engine.step()
    assert watched == [
        *("sees 0", "forward", "forward_ahead", "read"),
        *("sees 1", "forward_ahead", "read"),
        *("sees 2", "forward_ahead", "read"),
        # Nothing follows the last token.
        *("sees 3", "read"),
    ]


@pytest.mark.parametrize(
    ("device", "passes"), [({"overlap": False}, 0), ({"pinned_memory": False}, 0), ({"cuda_graphs": False}, 3), ({}, 3)]
)
def test_the_switches(device: dict[str, bool], passes: int, directory: str) -> None:
    config = tiny_fd_config()
    config = replace(config, device_config=replace(config.device_config, **device))
    with device_like(), counted_passes() as counted:
        engine = EngineCore(config, chain_of([], config))
        engine.add(request("r", [3, 1, 4], max_tokens=4))
        while engine.has_work:
            engine.step()
    assert (counted.begun, counted.taken) == (passes, passes)


def test_a_pass_that_a_new_prompt_joins_runs_again(directory: str) -> None:
    with device_like(), counted_passes() as counted:
        engine = engine_of(directory, [], overlap=True)
        engine.add(request("first", [3, 1, 4], max_tokens=4, ignore_eos=True))
        engine.step()
        engine.add(request("second", [3, 1, 4], max_tokens=4, ignore_eos=True))
        told = [step.token_ids for step in engine.step().steps]
        assert (counted.begun, counted.taken, len(told)) == (2, 0, 2)
        while engine.has_work:
            engine.step()
    # The two of "first", and the last one of "second" alone.
    assert (counted.begun, counted.taken) == (4, 3)


def test_a_preempted_sequence_uses_nothing_that_ran_ahead(directory: str) -> None:
    """It comes back at the same position, since its block of four tokens is known, but with another block after it."""
    with device_like(), counted_passes() as counted:
        engine = engine_of(directory, [], overlap=True)
        engine.add(request("r", [3, 1, 4], max_tokens=6, ignore_eos=True))
        told = [*engine.step().steps, *engine.step().steps]
        assert (counted.begun, counted.taken) == (2, 1)
        engine.scheduler.preempt()
        told += engine.step().steps
        assert counted.taken == 1
        while engine.has_work:
            told += engine.step().steps
        expected = run_to_end(
            engine_of(directory, [], overlap=False), [request("r", [3, 1, 4], max_tokens=6, ignore_eos=True)]
        )
    assert [token for step in told for token in step.token_ids] == expected["r"].token_ids


def test_nothing_runs_ahead_beside_a_prompt_that_goes_on(directory: str) -> None:
    with device_like(), counted_passes() as counted:
        engine = engine_of(directory, [], overlap=True, max_num_batched_tokens=8)
        engine.add(request("first", [3, 1, 4], max_tokens=6, ignore_eos=True))
        engine.add(request("second", [5] * 20, max_tokens=2, ignore_eos=True))
        for _ in range(3):
            engine.step()
        assert counted.begun == 0


def test_nothing_runs_ahead_on_the_host(directory: str) -> None:
    with counted_passes() as counted:
        engine = engine_of(directory, [], overlap=True)
        engine.add(request("r", [3, 1, 4], max_tokens=4))
        while engine.has_work:
            engine.step()
    assert counted.begun == 0


def test_a_row_without_a_token_fails_alone(directory: str) -> None:
    with device_like(), counted_passes() as counted:
        engine = engine_of(directory, [], overlap=True)
        engine.add(request("none", [1, 2], allowed_token_ids=[4], bad_words_token_ids=[[4]], max_tokens=3))
        engine.add(request("other", [1, 2], max_tokens=3, ignore_eos=True))
        told = {"none": [], "other": []}
        while engine.has_work:
            for step in engine.step().steps:
                told[step.request_id].append(step)
    (failed,) = told["none"]
    assert failed.error == "allowed_token_ids and bad_words left no token that can be sampled"
    assert [step.error for step in told["other"]] == [None] * 3
    assert (counted.begun, counted.taken) == (2, 2)
