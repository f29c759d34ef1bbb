"""Masks of a draft's rows: those of single steps, and the same answers with, without and after them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.drafters import KnowsMost
from support.grammars import TINY_EOS, TINY_VOCAB, TinyGrammars
from support.sequences import chain_of, request
from support.tiny import tiny_fd_config

from fastdeploy_lp.config.speculation import Speculation
from fastdeploy_lp.guided_decoding.compiler import GrammarError, GrammarMatcher, words_for
from fastdeploy_lp.guided_decoding.grammar import grammar_of
from fastdeploy_lp.messages import AddRequest, StepOutputs
from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams
from fastdeploy_lp.worker.engine_core import EngineCore
from fastdeploy_lp.worker.masks_ahead import MasksAhead
from fastdeploy_lp.worker.model_runner_base import StepResult
from fastdeploy_lp.worker.scheduled import ScheduledChunk

KNOWN = "support.drafters:KnowsMost"
REGEX = r"(the quick brown fox|[a-z]{3,9}) and [0-9]{1,3}\."


def matcher_of(grammars: TinyGrammars) -> GrammarMatcher:
    return grammars.compiler.matcher(grammar_of(GuidedDecodingParams(regex=REGEX)).text)


def filled(matcher: GrammarMatcher) -> NDArray[np.int32]:
    bits = np.zeros(words_for(TINY_VOCAB), np.int32)
    matcher.fill(bits)
    return bits


def masks_ahead(matcher: GrammarMatcher, draft: list[int]) -> list[NDArray[np.int32]]:
    made = MasksAhead(matcher.copy(), filled(matcher), draft, (TINY_EOS,), "")
    assert made.known == 1
    made.fill()
    assert made.ready
    return list(made.bits[: made.known])


def test_masks_are_those_of_single_steps(grammars: TinyGrammars) -> None:
    draft, matcher = grammars.tokens("the quick brown fox and 12."), matcher_of(grammars)
    found = masks_ahead(matcher, draft)
    # Nothing follows the end of the text.
    assert len(found) == len(draft)
    for bits, token in zip(found, draft, strict=True):
        assert (bits == filled(matcher)).all()
        matcher.consume([token])
    assert matcher.is_complete


@pytest.mark.parametrize("wrong", [TINY_EOS, 0])
def test_nothing_follows_a_token_that_may_not_come(grammars: TinyGrammars, wrong: int) -> None:
    text = grammars.tokens("the quick")
    assert len(masks_ahead(matcher_of(grammars), [*text, wrong, *text])) == 1 + len(text)


class FailsAt(GrammarMatcher):
    """Fails at one of the tokens that it reads, as a copy of it does."""

    at = 5
    read = 0

    def copy(self) -> GrammarMatcher:
        made: Any = super().copy()
        made.read = self.read
        return made

    def consume(self, token_ids: list[int]) -> None:
        self.read += len(token_ids)
        if self.read >= self.at:
            raise GrammarError("broken by a test")
        super().consume(token_ids)


def test_nothing_follows_a_mask_that_fails(grammars: TinyGrammars) -> None:
    matcher, draft = matcher_of(grammars), grammars.tokens("the quick brown fox and 12.")
    failing = FailsAt(matcher._matcher.deep_copy(), (TINY_EOS,))
    found = masks_ahead(failing, draft)
    assert len(found) == FailsAt.at
    assert all((one == other).all() for one, other in zip(found, masks_ahead(matcher, draft), strict=False))


Make = Callable[..., EngineCore]


@pytest.fixture
def engine(directory: Path) -> Make:
    """Makes engines that know the tiny model's tokenizer, with drafts or without."""

    def make(*, drafts: bool, method: str = KNOWN) -> EngineCore:
        speculation = Speculation(method, adaptive=False) if drafts else None
        config = tiny_fd_config(eos_token_ids=(TINY_EOS,), speculation=speculation)
        config = replace(config, model_config=replace(config.model_config, directory=str(directory)))
        return EngineCore(config, chain_of([], config))

    return make


def requests() -> list[AddRequest]:
    """Guided requests, greedy and sampled, and one without a grammar."""
    made = []
    for index in range(6):
        sampled: dict[str, Any] = {"temperature": 1.2, "seed": index} if index % 2 else {}
        made.append(request(f"r{index}", [index + 1, 5, 9], max_tokens=30, **sampled))
        if index < 5:
            made[-1].grammar = grammar_of(GuidedDecodingParams(regex=REGEX)).text
    return made


def ended(core: EngineCore) -> dict[str, tuple[list[int], Any]]:
    """Tokens and end of each request."""
    found: dict[str, tuple[list[int], Any]] = {}
    for each in requests():
        core.add(each)
    while core.has_work:
        for step in core.step().steps:
            tokens, _ = found.get(step.request_id, ([], None))
            found[step.request_id] = [*tokens, *step.token_ids], (step.error, step.finish_reason, step.stop_reason)
    return found


def accepted(core: EngineCore) -> int:
    return sum(stats.accepted for stats in core.load().scheduler_stats.drafts)


@pytest.fixture(params=[0.0, 0.3], ids=["right", "often-wrong"])
def expected(
    request: pytest.FixtureRequest, engine: Make, monkeypatch: pytest.MonkeyPatch
) -> dict[str, tuple[list[int], Any]]:
    """The answers without drafts, which the drafter then knows."""
    plain = ended(engine(drafts=False))
    monkeypatch.setattr(KnowsMost, "outputs", {name: tokens + [7] * 9 for name, (tokens, _) in plain.items()})
    monkeypatch.setattr(KnowsMost, "wrong", request.param)
    return plain


def count_rounds(core: EngineCore, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Counts the rounds after the first ones."""
    rounds, verify = itertools.count(), core.worker.verify
    monkeypatch.setattr(core.worker, "verify", lambda chunks: (next(rounds), verify(chunks))[1])
    return rounds


def test_drafts_of_guided_requests_take_no_rounds(
    engine: Make, expected: dict[str, tuple[list[int], Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastdeploy_lp.worker.guided_decoding.GRACE_SECONDS", 60.0)
    core = engine(drafts=True)
    rounds = count_rounds(core, monkeypatch)
    assert ended(core) == expected
    assert accepted(core) > 20
    assert next(rounds) == 0


def not_in_time(masks: MasksAhead) -> None:
    """Leaves the masks as they are; without an end, a thread would watch them until the process ends."""
    masks.ready = True


def test_without_masks_the_drafts_take_rounds(
    engine: Make, expected: dict[str, tuple[list[int], Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MasksAhead, "fill", not_in_time)
    core = engine(drafts=True)
    rounds = count_rounds(core, monkeypatch)
    assert ended(core) == expected
    assert accepted(core) > 20
    assert next(rounds) > 0


def test_a_sequence_that_is_held_after_a_right_draft_token_continues_in_a_later_step(
    engine: Make, expected: dict[str, tuple[list[int], Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastdeploy_lp.worker.guided_decoding.GRACE_SECONDS", 60.0)
    monkeypatch.setattr(MasksAhead, "fill", not_in_time)
    core = engine(drafts=True)
    execute, holds, step = core.worker.execute_model, core.worker.holds, core.step
    executed = False

    def executing(chunks: list[ScheduledChunk]) -> StepResult:
        nonlocal executed
        result, executed = execute(chunks), True
        return result

    def stepping() -> StepOutputs:
        nonlocal executed
        executed = False
        # Nothing else holds a sequence, so that a step never waits.
        assert core.can_step
        return step()

    monkeypatch.setattr(core.worker, "execute_model", executing)
    monkeypatch.setattr(core.worker, "holds", lambda slot: executed or holds(slot))
    monkeypatch.setattr(core, "step", stepping)
    assert ended(core) == expected
    assert accepted(core) > 20


@pytest.mark.parametrize("at", [2, 3, 5])
def test_a_matcher_that_fails_within_a_draft_ends_its_request_at_the_same_token(
    engine: Make, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    whole = ended(engine(drafts=False))
    monkeypatch.setattr(FailsAt, "at", at)
    monkeypatch.setattr(KnowsMost, "outputs", {name: tokens for name, (tokens, _) in whole.items()})
    monkeypatch.setattr(KnowsMost, "wrong", 0.0)
    results = []
    for drafts in (False, True):
        core = engine(drafts=drafts)
        compiler: Any = core.runner.mask._compiler  # type: ignore[attr-defined]
        made_by = compiler.matcher_of
        monkeypatch.setattr(
            compiler, "matcher_of", lambda compiled, make=made_by: FailsAt(make(compiled)._matcher, (TINY_EOS,))
        )
        results.append(ended(core))
    plain, drafted = results
    assert drafted == plain
    assert [len(tokens) for tokens, (error, *_) in plain.values() if error] == [at - 1] * 5
    assert plain["r5"] == whole["r5"]


def test_no_draft_from_the_text_begins_with_a_token_that_the_grammar_rules_out(
    engine: Make, grammars: TinyGrammars
) -> None:
    (seven,) = grammars.tokens("7")
    letters = [token for letter in "abcde" for token in grammars.tokens(letter)]
    # A digit follows the newest place of each letter.
    prompt = [token for letter in letters for token in (letter, letter, seven)]
    core = engine(drafts=True, method="ngram")
    drafted: list[int] = []
    execute = core.worker.execute_model

    def noting(chunks: list[ScheduledChunk]) -> StepResult:
        drafted.extend(chunk.draft[0] for chunk in chunks if chunk.draft)
        return execute(chunks)

    core.worker.execute_model = noting  # type: ignore[method-assign]
    made = request("r", prompt, max_tokens=40)
    made.grammar = grammar_of(GuidedDecodingParams(regex="[a-e]{40}")).text
    core.add(made)
    while core.has_work:
        core.step()
    assert drafted
    assert seven not in drafted
