"""Drafts of marks and white space in guided answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.grammars import TINY_EOS, TinyGrammars
from support.sequences import Ran, chain_of, request, run_to_end, sequence
from support.tiny import tiny_fd_config

from fastdeploy_lp.config.speculation import LAYOUT, Speculation
from fastdeploy_lp.guided_decoding.grammar import grammar_of
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams
from fastdeploy_lp.worker.drafters.drafter import NEVER, Draft
from fastdeploy_lp.worker.drafters.layout import LayoutDrafter
from fastdeploy_lp.worker.drafters.layouts import Layouts
from fastdeploy_lp.worker.engine_core import EngineCore

OPEN, BREAK, QUOTE, NAME = range(4)
TEXT = [OPEN, BREAK, QUOTE, NAME]


@pytest.fixture
def banned() -> set[int]:
    """Tokens that the grammars of all requests rule out now."""
    return set()


@pytest.fixture
def drafter(banned: set[int]) -> LayoutDrafter:
    texts = [b"{", b"\n ", b' "', b"name"]
    return LayoutDrafter(Layouts(texts.__getitem__), lambda _, token: token not in banned)


def answer(drafter: LayoutDrafter, grammar: str | None = "start: /a/", **fields: Any) -> None:
    """Has a request write `TEXT`, the first two tokens before a preemption, and the last one in its last step."""
    made = sequence([9], slot=0, output=TEXT[:2], max_tokens=9, **fields)
    made.grammar, made.client = grammar, "a"
    drafter.enter(made)
    made.output_token_ids = TEXT[:3]
    drafter.begin_step(1, 0.0)
    made.output_token_ids = TEXT
    drafter.leave(0)


def drafted(drafter: LayoutDrafter, output: list[int], client: str = "a") -> Draft | None:
    made = sequence([9], slot=1, output=output, max_tokens=9)
    made.grammar, made.client = "start: /b/", client
    drafter.enter(made)
    assert drafter.begin_step(1, 0.0)
    found = drafter.draft(made, 8)
    drafter.leave(1)
    return found


def test_marks_of_an_answer_are_drafted_in_the_next_one(drafter: LayoutDrafter, banned: set[int]) -> None:
    assert drafter.next_step == NEVER
    assert drafted(drafter, [OPEN, BREAK]) is None
    answer(drafter)
    assert drafted(drafter, [OPEN, BREAK]) == Draft([QUOTE], LAYOUT)
    # What came before a preemption was learned from in the first slot; nothing is known after the last token.
    assert drafted(drafter, [OPEN]) is None
    assert drafted(drafter, TEXT) is None
    assert drafted(drafter, [OPEN, BREAK], "b") is None
    banned.add(QUOTE)
    assert drafted(drafter, [OPEN, BREAK]) is None


@pytest.mark.parametrize("fields", [{"grammar": None}, {"speculative": False}], ids=str)
def test_other_requests_are_not_learned_from(drafter: LayoutDrafter, fields: dict[str, Any]) -> None:
    answer(drafter, **fields)
    assert drafted(drafter, [OPEN, BREAK]) is None


Answers = Callable[[Speculation | None, list[AddRequest]], tuple[dict[str, Ran], dict[str, int]]]


@pytest.fixture
def answers(directory: Path) -> Answers:
    """Runs requests one after the other in one engine; its answers, and the right draft tokens by kind."""

    def answers(speculation: Speculation | None, requests: list[AddRequest]) -> tuple[dict[str, Ran], dict[str, int]]:
        config = tiny_fd_config(eos_token_ids=(TINY_EOS,), speculation=speculation)
        config = replace(config, model_config=replace(config.model_config, directory=str(directory)))
        core, found = EngineCore(config, chain_of([], config)), dict[str, Ran]()
        for each in requests:
            found |= run_to_end(core, [each])
        return found, {stats.kind: stats.accepted for stats in core.load().scheduler_stats.drafts}

    return answers


def test_marks_and_forced_tokens_are_drafted_together_and_change_no_answer(
    answers: Answers, grammars: TinyGrammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastdeploy_lp.worker.guided_decoding.GRACE_SECONDS", 60.0)
    form = GuidedDecodingParams(regex='\\{[\\n ]{2}"name": "[a-z]{3}"[\\n ]\\}')

    def requests() -> list[AddRequest]:
        made = [request(f"r{index}", [5, 6, 7], max_tokens=40, client="c") for index in range(3)]
        for each in made:
            each.grammar = grammar_of(form).text
        return made

    plain, _ = answers(None, requests())
    right = {}
    for methods in (("layout",), ("grammar",), ("grammar", "layout"), ("auto",)):
        drafted, accepted = answers(Speculation(methods, adaptive=False), requests())
        assert drafted == plain
        right[methods] = sum(accepted.values())
    assert right["layout",] > 0
    # Each goes on after the other.
    assert right["grammar", "layout"] > max(right["layout",], right["grammar",])
    assert right["auto",] >= right["grammar", "layout"]
