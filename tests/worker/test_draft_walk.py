"""Drafts that follow their sequence's grammar: they end where they leave it, and continue with what it forces."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as AnySequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.grammars import TINY_EOS, TinyGrammars
from support.sequences import chain_of, request
from support.tiny import tiny_fd_config

from fastdeploy_lp.config.speculation import Speculation
from fastdeploy_lp.guided_decoding.compiler import GrammarError
from fastdeploy_lp.guided_decoding.grammar import grammar_of
from fastdeploy_lp.guided_decoding.phased_matcher import Matcher, PhasedMatcher, WaitingMasks
from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams
from fastdeploy_lp.request.phase import Phase, Section
from fastdeploy_lp.worker.draft_walk import DraftWalk
from fastdeploy_lp.worker.engine_core import EngineCore
from fastdeploy_lp.worker.logits_mask import Followed, Lead, Likely, Run
from fastdeploy_lp.worker.model_runner_base import StepResult
from fastdeploy_lp.worker.scheduled import ScheduledChunk

# A key after a space or none: the key is forced, the space is not.
REGEX = r"[a-z]{1,3}; ?name=[0-9]"
PHASED = Phase((Section(inside=False, until=">", then=1), Section(inside=True)))


@pytest.fixture(params=["whole", "phased"])
def matcher(request: pytest.FixtureRequest, grammars: TinyGrammars, directory: Path) -> Matcher:
    """A matcher at the beginning of its form, of whole outputs or of outputs in phases."""
    begin = partial(grammars.compiler.matcher, grammar_of(GuidedDecodingParams(regex=REGEX)).text)
    if request.param == "whole":
        return begin()
    config = tiny_fd_config(eos_token_ids=(TINY_EOS,))
    config = replace(config, model_config=replace(config.model_config, directory=str(directory)))
    waiting = WaitingMasks(lambda: config.tokenizer.vocabulary_bytes(512), 512, (TINY_EOS,))
    phased = PhasedMatcher(PHASED, begin, None, waiting)
    assert phased.follow(grammars.tokens("a;>")) == len(grammars.tokens("a;>"))
    return phased


def followed(matcher: Matcher, draft: list[int], *, most: int = 20, likely: Likely | None = None) -> Followed | None:
    walk = DraftWalk(matcher.copy(), Lead(draft, most, likely), (TINY_EOS,), "")
    walk.fill()
    assert walk.ready
    return walk.found


def forced_after(matcher: Matcher, tokens: list[int]) -> list[int]:
    ahead = matcher.copy()
    ahead.consume(tokens)
    return ahead.forced()


def test_a_draft_ends_where_it_leaves_the_grammar_and_continues_with_what_is_forced(
    matcher: Matcher, grammars: TinyGrammars
) -> None:
    right, wrong = grammars.tokens("a; n"), grammars.tokens("x=1")
    forced = forced_after(matcher, right)
    assert forced
    expected = [Run(forced, forced=True)]
    assert followed(matcher, right) == (len(right), expected)
    assert followed(matcher, [*right, *wrong]) == (len(right), expected)
    assert followed(matcher, wrong[1:]) == (0, [])
    assert followed(matcher, right, most=len(right) + 1) == (len(right), [Run(forced[:1], forced=True)])
    assert followed(matcher, right, most=len(right)) == (len(right), [])


def test_a_draft_goes_on_with_the_likeliest_tokens_that_are_allowed(matcher: Matcher, grammars: TinyGrammars) -> None:
    draft, (wrong, space, letter) = grammars.tokens("a;"), grammars.tokens("! n")
    asked: list[tuple[list[int], bytes]] = []

    def likely(tokens: AnySequence[int], rest: bytes) -> list[int]:
        asked.append((list(tokens), rest))
        return [wrong, space, letter] if len(asked) == 1 else [wrong]

    forced = forced_after(matcher, [*draft, space])
    assert followed(matcher, draft, likely=likely) == (2, [Run([space], forced=False), Run(forced, forced=True)])
    assert asked == [(draft, b""), ([*draft, space, *forced], b"")]


def test_likely_tokens_one_after_another_are_one_run(matcher: Matcher, grammars: TinyGrammars) -> None:
    draft, (second, third) = grammars.tokens("a"), grammars.tokens("bc")
    found = followed(matcher, draft, most=3, likely=lambda tokens, _: [second if len(tokens) == 1 else third])
    assert found == (1, [Run([second, third], forced=False)])


def test_nothing_follows_a_complete_text(matcher: Matcher, grammars: TinyGrammars) -> None:
    text = grammars.tokens("a; name=1")
    assert followed(matcher, [*text, *text]) == (len(text), [])
    assert followed(matcher, [*text, TINY_EOS, *text]) == (len(text) + 1, [])


def test_a_walk_that_fails_finds_nothing(
    matcher: Matcher, grammars: TinyGrammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> int:
        raise GrammarError("broken by a test")

    monkeypatch.setattr(type(matcher), "follow", fails)
    assert followed(matcher, grammars.tokens("a;")) is None


Drafts = Callable[[tuple[str, ...]], list[list[int]]]


@pytest.fixture
def drafts(directory: Path, grammars: TinyGrammars) -> Drafts:
    """The drafts of a guided request whose prompt names another key at the place of its key."""

    def drafts(methods: tuple[str, ...]) -> list[list[int]]:
        config = tiny_fd_config(eos_token_ids=(TINY_EOS,), speculation=Speculation(methods, adaptive=False))
        config = replace(config, model_config=replace(config.model_config, directory=str(directory)))
        core, found = EngineCore(config, chain_of([], config)), list[list[int]]()
        execute = core.worker.execute_model

        def noting(chunks: list[ScheduledChunk]) -> StepResult:
            found.extend(chunk.draft for chunk in chunks if chunk.draft)
            return execute(chunks)

        core.worker.execute_model = noting  # type: ignore[method-assign]
        made = request("r", grammars.tokens("a; number=7 b; number=7 c; number=7"), max_tokens=30)
        made.grammar = grammar_of(GuidedDecodingParams(regex="[a-c][;,] ?name=[0-9]")).text
        core.add(made)
        while core.has_work:
            core.step()
        return found

    return drafts


def test_a_draft_from_the_text_continues_with_the_key_that_is_forced(
    drafts: Drafts, grammars: TinyGrammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastdeploy_lp.worker.guided_decoding.GRACE_SECONDS", 60.0)
    texts = [grammars.text(draft) for draft in drafts(("ngram", "grammar"))]
    assert any(text.startswith("; n") and text.endswith("ame=") for text in texts), texts
    # Without the source of forced tokens, the draft is that of the text.
    texts = [grammars.text(draft) for draft in drafts(("ngram",))]
    assert any(text.startswith("; number") for text in texts), texts
