"""Guided decoding in the engine: rows keep to their grammars, whatever else happens, and nobody else notices."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from paddle import Tensor
from support.grammars import TINY_EOS, TinyGrammars, ambiguous, write_unsuitable_tokenizer
from support.mixed_batches import FAILING
from support.sequences import chain_of, request
from support.tiny import tiny_fd_config, write_tiny_checkpoint
from tokenizers import Tokenizer

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.guided_decoding.compiler import GrammarMatcher
from fastdeploy_lp.guided_decoding.grammar import grammar_of
from fastdeploy_lp.logits_processor import LogitsProcessor, Selection
from fastdeploy_lp.messages import AddRequest, SequenceStep
from fastdeploy_lp.model_executor.ops.paddle_rows import PaddleRowOps
from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams
from fastdeploy_lp.worker import guided_decoding
from fastdeploy_lp.worker.engine_core import EngineCore
from fastdeploy_lp.worker.mask_threads import MAX_LOST_OF_CLIENT
from fastdeploy_lp.worker.sampler import sampler

PHONE = r"\+[0-9]{2} [0-9]{3,4}-[0-9]{4}"
LIST = 'start: item+\nitem: /[a-z]{1,9}/ "=" /[0-9]{2}/ ";"'
SAMPLED = {"temperature": 1.5, "seed": 7}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


class SetsLogits(LogitsProcessor):
    """Gives every token of every row the same high logit, ruled out or not."""

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Any) -> None: ...

    def apply(self, logits: Tensor) -> Tensor:
        return logits.fill_(100.0)


Make = Callable[..., EngineCore]


@pytest.fixture
def engine(directory: Path) -> Make:
    """Makes engines that know the tiny model's tokenizer."""

    def make(processors: Any = (), **config: Any) -> EngineCore:
        fd_config = tiny_fd_config(**{"eos_token_ids": (TINY_EOS,), **config})
        model_config = replace(fd_config.model_config, directory=str(directory))
        return EngineCore(replace(fd_config, model_config=model_config), chain_of(list(processors), fd_config))

    return make


def guided(request_id: str, prompt: list[int], *, grammar: str | None = None, **params: Any) -> AddRequest:
    """A request for text of a regular expression, unless it has a grammar."""
    text = grammar or grammar_of(GuidedDecodingParams(regex=params.pop("regex", PHONE))).text
    made = request(request_id, prompt, **params)
    made.grammar = text
    return made


def run(core: EngineCore, *requests: AddRequest) -> dict[str, list[SequenceStep]]:
    for each in requests:
        core.add(each)
    steps: dict[str, list[SequenceStep]] = {}
    while core.has_work:
        for step in core.step().steps:
            steps.setdefault(step.request_id, []).append(step)
    return steps


def run_preempted(core: EngineCore, asked: AddRequest) -> list[SequenceStep]:
    """The steps of a request that is preempted after each of them."""
    core.add(asked)
    steps: list[SequenceStep] = []
    while core.has_work:
        made = core.step().steps
        steps += made
        # One that is held would lose the mask that it waits for.
        if made and core.has_work and core.scheduler.num_running:
            core.scheduler.preempt()
    return steps


def tokens_of(steps: list[SequenceStep]) -> list[int]:
    return [token for step in steps for token in step.token_ids]


def text_of(tokenizer: Tokenizer, steps: list[SequenceStep]) -> str:
    assert [step.error for step in steps] == [None] * len(steps)
    return str(tokenizer.decode(tokens_of(steps)))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=str)
def test_an_output_matches_and_ends_with_its_last_token(
    engine: Make, tokenizer: Tokenizer, sampling: dict[str, Any], compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(sampler, "row_ops", PaddleRowOps)
    steps = run(engine(), guided("r", [1, 2, 3], max_tokens=40, **sampling))["r"]
    assert re.fullmatch(PHONE, text_of(tokenizer, steps))
    assert steps[-1].finish_reason == "stop"
    assert steps[-1].stop_reason is None


class LateMatcher(GrammarMatcher):
    """Reads each token after the step that sampled it."""

    between_steps = threading.Event()

    def consume(self, token_ids: list[int]) -> None:
        self.between_steps.wait()
        super().consume(token_ids)


@pytest.mark.parametrize("preempted", [False, True])
@pytest.mark.parametrize(("beyond", "reason"), [(10, "stop"), (0, "stop"), (-1, "length")])
def test_an_output_ends_with_the_same_token_if_its_end_is_found_late(
    engine: Make, beyond: int, reason: str, preempted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """beyond: tokens that the request allows beyond its text. A processor fails on a token beyond the end."""
    text = tokens_of(run(engine(), guided("r", [1, 2, 3], max_tokens=40))["r"])
    fails_beyond = Selection(named={"failing": {"at": len(text) + min(beyond, 0)}})
    asked = guided("r", [1, 2, 3], max_tokens=len(text) + beyond, logprobs=1, selection=fails_beyond)
    expected = run(engine([FAILING]), asked)["r"]
    core = engine([FAILING])
    mask: Any = core.runner.mask
    accept, matcher_of = mask.accept, mask._compiler.matcher_of

    def accept_before_the_reading(*arguments: Any) -> None:
        LateMatcher.between_steps.clear()
        accept(*arguments)
        LateMatcher.between_steps.set()

    LateMatcher.between_steps.set()
    monkeypatch.setattr(guided_decoding, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(mask, "accept", accept_before_the_reading)
    monkeypatch.setattr(
        mask._compiler, "matcher_of", lambda compiled: LateMatcher(matcher_of(compiled)._matcher, (TINY_EOS,))
    )
    found = run_preempted(core, asked) if preempted else run(core, asked)["r"]
    assert tokens_of(found) == tokens_of(expected)
    assert sum(len(step.logprobs or ()) for step in found) == len(tokens_of(found))
    assert [(step.finish_reason, step.stop_reason) for step in (found[-1], expected[-1])] == [(reason, None)] * 2


def test_the_end_of_sequence_is_allowed_where_the_text_may_end(engine: Make, tokenizer: Tokenizer) -> None:
    steps = run(
        engine(), *[guided(f"r{n}", [n + 1], regex="[a-c]+", max_tokens=60, temperature=2.0, seed=n) for n in range(8)]
    )
    reasons = {each[-1].finish_reason for each in steps.values()}
    assert "stop" in reasons
    for each in steps.values():
        if each[-1].finish_reason == "stop":
            assert each[-1].stop_reason == TINY_EOS
        assert re.fullmatch("[a-c]+", text_of(tokenizer, each))


def test_the_limit_cuts_an_output_that_could_still_become_one(engine: Make, tokenizer: Tokenizer) -> None:
    steps = run(engine(), guided("r", [1, 2, 3], max_tokens=3))["r"]
    assert steps[-1].finish_reason == "length"
    assert re.fullmatch(PHONE, text_of(tokenizer, steps)) is None


def test_ignoring_the_end_does_not_go_beyond_the_grammar(engine: Make) -> None:
    """An output that is complete ends with "stop", whatever `ignore_eos` and `min_tokens` would like."""
    core = engine()
    steps = run(core, guided("r", [1], regex="ab", ignore_eos=True, max_tokens=30, min_tokens=30))["r"]
    assert steps[-1].finish_reason == "stop"
    steps = run(core, guided("r", [1], regex="[ab]+", ignore_eos=True, max_tokens=60, temperature=2.0, seed=1))["r"]
    tokens = tokens_of(steps)
    assert steps[-1].finish_reason == ("stop" if tokens[-1] == TINY_EOS else "length")


@pytest.mark.parametrize(
    "config",
    [
        {"max_num_batched_tokens": 8},
        {"max_num_seqs": 4, "num_blocks": 22},
        {"max_num_seqs": 2},
        {"enable_prefix_caching": False},
        {"block_size": 8, "max_num_batched_tokens": 5},
    ],
    ids=str,
)
@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=str)
def test_outputs_do_not_depend_on_chunks_preemption_prefixes_or_neighbours(
    engine: Make, config: dict[str, Any], sampling: dict[str, Any]
) -> None:
    def requests() -> list[AddRequest]:
        prompts = [[7] * 9 + [n] for n in range(6)]
        made = [guided(f"g{n}", prompts[n], grammar=LIST, max_tokens=30, **sampling) for n in range(0, 6, 2)]
        return made + [request(f"p{n}", prompts[n], max_tokens=30, **sampling) for n in range(1, 6, 2)]

    alone = {each.request_id: tokens_of(run(engine(), each)[each.request_id]) for each in requests()}
    core = engine(**config)
    crowd = {name: tokens_of(steps) for name, steps in run(core, *requests()).items()}
    assert crowd == alone
    if "num_blocks" in config:
        assert core.scheduler.num_preemptions > 0


def test_preempting_at_every_step_changes_nothing(engine: Make) -> None:
    """The matcher is built again from the tokens that are there."""
    expected = tokens_of(run(engine(), guided("r", [5, 6], grammar=LIST, max_tokens=20, **SAMPLED))["r"])
    steps = run_preempted(engine(), guided("r", [5, 6], grammar=LIST, max_tokens=20, **SAMPLED))
    assert tokens_of(steps) == expected


def test_a_processor_can_not_bring_back_what_the_grammar_rules_out(engine: Make, tokenizer: Tokenizer) -> None:
    steps = run(engine([SetsLogits]), guided("r", [1], max_tokens=40, **SAMPLED))["r"]
    assert re.fullmatch(PHONE, text_of(tokenizer, steps))


def test_what_others_rule_out_as_well_may_leave_nothing(engine: Make, tokenizer: Tokenizer) -> None:
    digits = tokenizer.encode("0123456789", add_special_tokens=False).ids
    steps = run(
        engine(),
        guided("none", [1], regex="[0-9]+", bad_words_token_ids=[[token] for token in range(512) if token != TINY_EOS]),
        guided("nine", [1], regex="[0-9]", allowed_token_ids=[digits[9]]),
    )
    assert steps["none"][-1].error == "guided decoding and bad_words left no token that can be sampled"
    assert text_of(tokenizer, steps["nine"]) == "9"


def test_a_grammar_that_does_not_compile_ends_its_request_alone(engine: Make) -> None:
    """The API process lets none through, but this one does not rely on it."""
    core = engine()
    plain = request("plain", [4, 5], max_tokens=12)
    expected = tokens_of(run(engine(), request("plain", [4, 5], max_tokens=12))["plain"])
    steps = run(core, guided("bad", [1], grammar="start: nothing"), plain, guided("good", [1], max_tokens=40))
    assert "guided decoding cannot go on" in (steps["bad"][-1].error or "")
    assert len(steps["bad"]) == 1
    assert tokens_of(steps["plain"]) == expected
    assert steps["good"][-1].finish_reason == "stop"


def test_a_matcher_that_fails_half_way_ends_its_request_alone(engine: Make) -> None:
    core = engine()
    core.add(guided("broken", [1], grammar=LIST, max_tokens=30))
    core.add(guided("whole", [2], grammar=LIST, max_tokens=30))
    expected = tokens_of(run(engine(), guided("whole", [2], grammar=LIST, max_tokens=30))["whole"])
    steps: list[SequenceStep] = []
    while sum(step.request_id == "broken" for step in steps) < 2:
        steps += core.step().steps
    slot = core.runner.share_inputs["req_ids"].index("broken")
    mask: Any = core.runner.mask
    with mask._changed:
        mask._changed.wait_for(lambda: mask._by_slot[slot].ready)
    # A token that the grammar does not have at any place.
    mask._by_slot[slot]._matcher._matcher.consume_tokens([0])
    while core.has_work:
        steps += core.step().steps
    by_id = {name: [step for step in steps if step.request_id == name] for name in ("broken", "whole")}
    assert "guided decoding cannot go on" in (by_id["broken"][-1].error or "")
    assert 2 <= len(tokens_of(by_id["broken"])) <= 3
    assert tokens_of(by_id["whole"]) == expected


class HeldMatcher(GrammarMatcher):
    """Computes no mask until it is let go."""

    released = threading.Event()

    def fill(self, bits: NDArray[np.int32]) -> None:
        self.released.wait()
        super().fill(bits)


def test_a_slow_mask_holds_up_its_own_request_alone(
    engine: Make, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others end while it is computed, those with grammars of their own among them; then it goes on."""
    core = engine()
    compiler: Any = core.runner.mask._compiler  # type: ignore[attr-defined]
    original = compiler.matcher_of

    def matcher_of(compiled: Future[Any]) -> GrammarMatcher:
        made = original(compiled)
        return HeldMatcher(made._matcher, (TINY_EOS,)) if compiled is compiler.compiled(held)[0] else made

    held = grammar_of(GuidedDecodingParams(regex="[a-z]{5}")).text
    monkeypatch.setattr(compiler, "matcher_of", matcher_of)
    core.add(guided("held", [1, 2, 3], grammar=held, max_tokens=40))
    core.add(request("plain", [4, 5], max_tokens=12))
    core.add(guided("guided", [1, 2, 3], max_tokens=40))
    steps: dict[str, list[SequenceStep]] = {"held": []}
    ended: set[str] = set()
    while ended != {"plain", "guided"}:
        for step in core.step().steps:
            steps.setdefault(step.request_id, []).append(step)
            ended |= {step.request_id} if step.finish_reason else set()
    assert steps["held"] == []
    assert re.fullmatch(PHONE, text_of(tokenizer, steps["guided"]))
    assert core.has_work
    HeldMatcher.released.set()
    while core.has_work:
        steps["held"] += core.step().steps
    assert re.fullmatch("[a-z]{5}", text_of(tokenizer, steps["held"]))


@pytest.fixture
def hasty(engine: Make) -> Iterator[EngineCore]:
    """An engine with little processor time for a mask; a process that ends within the library's calls would crash."""
    core = engine()
    mask: Any = core.runner.mask
    mask._masks._limit = 0.05
    yield core
    for thread in [*mask._masks._lost]:
        thread.join()


def test_with_every_slot_held_a_step_waits_for_a_mask(hasty: EngineCore) -> None:
    hasty.add(guided("r", [1], grammar=ambiguous(250), max_tokens=5))
    calls, steps = 0, list[SequenceStep]()
    while hasty.has_work:
        calls += 1
        steps += hasty.step().steps
    assert steps[-1].error is not None
    # One for each token, and for each time that the slot was held and released.
    assert calls <= 4 * len(steps)


def test_a_mask_without_end_ends_its_request_with_an_error_that_says_so(engine: Make, hasty: EngineCore) -> None:
    expected = tokens_of(run(engine(), guided("good", [2], grammar=LIST, max_tokens=30))["good"])
    steps = run(hasty, guided("evil", [1], grammar=ambiguous(250)), guided("good", [2], grammar=LIST, max_tokens=30))
    end = steps["evil"][-1]
    assert "takes more than 0.05 seconds" in (end.error or "")
    assert end.by_request
    assert tokens_of(steps["good"]) == expected


def test_a_client_whose_calls_are_lost_may_begin_no_further_grammar(engine: Make) -> None:
    core = engine()
    mask: Any = core.runner.mask
    threads = mask._masks
    threads._lost = {threading.Thread(): "evil" for _ in range(MAX_LOST_OF_CLIENT)}
    refused, served = guided("refused", [1], max_tokens=40), guided("served", [1], max_tokens=40)
    refused.client, served.client = "evil", "good"
    steps = run(core, refused, served)
    assert "earlier grammars take more time than they may" in (steps["refused"][-1].error or "")
    assert steps["served"][-1].finish_reason == "stop"


@pytest.mark.parametrize("named", [False, True])
def test_a_builtin_that_allows_nothing_of_the_grammar_is_the_requests_own_mistake(engine: Make, named: bool) -> None:
    name, args = "AllowedTokensLogitsProcessor", {"allowed_token_ids": [40, 41]}
    selection = Selection(named={name: args}) if named else Selection(flat=args)
    choice = grammar_of(GuidedDecodingParams(choice=["yes", "no"])).text
    (step,) = run(engine([name]), guided("r", [1], grammar=choice, selection=selection))["r"]
    assert step.error == f"guided decoding and logits processor {name} left no token that can be sampled"
    assert step.by_request


def test_without_grammars_there_is_nothing_to_do(engine: Make) -> None:
    core = engine()
    run(core, request("plain", [1], max_tokens=5))
    mask: Any = core.runner.mask
    assert not mask.active
    assert not mask._masks._threads
    assert not mask._builds._threads
    assert mask._bits.size == 0


def test_the_vocabulary_is_read_before_the_first_step(engine: Make) -> None:
    """The library keeps the interpreter's lock meanwhile, which would hold up every request of that step."""
    mask: Any = engine().runner.mask
    assert mask._compiler._tokenizer is not None


def test_slots_that_were_guided_are_free_again(engine: Make) -> None:
    core = engine(max_num_seqs=1)
    steps = run(core, guided("first", [1], max_tokens=40), request("second", [3], max_tokens=8))
    expected = tokens_of(run(engine(), request("second", [3], max_tokens=8))["second"])
    assert tokens_of(steps["second"]) == expected


def test_logprobs_are_those_of_what_the_grammar_allows(engine: Make, tokenizer: Tokenizer) -> None:
    steps = run(engine(), guided("r", [1], regex="[xyz]{4}", logprobs=20, **SAMPLED))["r"]
    # A mask that comes late ends the output in a step without a token.
    logprobs = [each for step in steps for each in step.logprobs or []]
    assert len(logprobs) == len(tokens_of(steps)) == 4
    for found in logprobs:
        likely = [value for value in found.logprobs[1:] if value > -np.inf]
        assert np.exp(likely).sum() == pytest.approx(1.0, abs=1e-5)
        possible = {
            token for token, value in zip(found.token_ids[1:], found.logprobs[1:], strict=True) if value > -np.inf
        }
        assert all(set(str(tokenizer.decode([token]))) <= set("xyz") for token in possible)


def test_named_processors_and_grammars_stand_together(engine: Make, tokenizer: Tokenizer) -> None:
    """Also where a request's own order makes the chain gather rows."""
    order = Selection(named={"SetsLogits": {}}, order=("SetsLogits",))
    core = engine(["LogitBiasLogitsProcessor", SetsLogits])
    steps = run(core, guided("r", [1], max_tokens=40, selection=order), guided("q", [2], max_tokens=40))
    for each in steps.values():
        assert re.fullmatch(PHONE, text_of(tokenizer, each))


def test_grammars_of_the_support_folder_are_those_of_the_engine(directory: Path) -> None:
    assert TinyGrammars(directory).fits("+49 123-4567", regex=PHONE)


def test_a_tokenizer_that_does_not_suit_grammars_serves_other_requests(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_unsuitable_tokenizer(write_tiny_checkpoint(tmp_path))
    fd_config = tiny_fd_config(eos_token_ids=(TINY_EOS,))
    fd_config = replace(fd_config, model_config=replace(fd_config.model_config, directory=str(tmp_path)))
    engine = EngineCore(fd_config, chain_of([], fd_config))
    assert "requests with guided decoding are refused" in caplog.text
    steps = run(engine, request("plain", [5, 6], max_tokens=3), guided("guided", [5, 6], max_tokens=3))
    assert len(tokens_of(steps["plain"])) == 3
    assert "tokenizer does not suit guided decoding" in str(steps["guided"][-1].error)
