"""Grammars that are written for requests: what they accept, and what not."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.grammars import TinyGrammars

from fastdeploy_lp.guided_decoding.grammar import Tagged, calls_only, free_text_with, one_of

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
few = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
NUMBER = {"type": "integer", "minimum": 0, "maximum": 99}
CALLS = [Tagged('<call>{"name": "f", "arguments": ', NUMBER, "}</call>"), Tagged("<call>g(", {"const": "x"}, ")")]


@few
@given(st.lists(texts, min_size=1, max_size=5), texts)
def test_a_choice_is_made_of_its_strings_alone(grammars: TinyGrammars, choices: list[str], other: str) -> None:
    grammar = one_of(choices)
    assert all(grammars.matches(grammar, choice) for choice in choices)
    for text in (other, choices[0] + other, choices[0][:-1]):
        assert grammars.matches(grammar, text) == (text in choices)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("", True),
        ("No call, but < and {.", True),
        ('<call>{"name": "f", "arguments": 7}</call>', True),
        ('Well:\n<call>{"name": "f", "arguments": 12}</call> and <call>g("x"), done', True),
        ("<call>", False),
        ("<call>h(1)", False),
        ('<call>{"name": "f", "arguments": 100}</call>', False),
        ('<call>{"name": "f", "arguments": 7}', False),
        ('text <call>g("y")', False),
    ],
)
def test_free_text_holds_tags_to_their_form(grammars: TinyGrammars, text: str, fits: bool) -> None:
    assert grammars.matches(free_text_with(CALLS, ["<call>"]), text) == fits


def test_a_tag_may_be_nothing_but_its_trigger(grammars: TinyGrammars) -> None:
    grammar = free_text_with([Tagged("[[", NUMBER, "")], ["[["])
    assert grammars.matches(grammar, "a [[5 b [[77")
    assert not grammars.matches(grammar, "a [[b")


ONE, OTHER = '<call>{"name": "f", "arguments": 7}</call>', '<call>g("x")'


@pytest.mark.parametrize(
    ("text", "alone", "several", "with_answer"),
    [
        (ONE, True, True, True),
        (OTHER, True, True, True),
        (f"{ONE}\n{OTHER}", False, True, False),
        ("", False, False, False),
        (f"So: {ONE}", False, False, False),
        ('{"a":1}', False, False, True),
        (f'{{"a":1}}{ONE}', False, False, False),
    ],
)
def test_calls_alone(grammars: TinyGrammars, text: str, alone: bool, several: bool, with_answer: bool) -> None:
    assert grammars.matches(calls_only(CALLS, several=False), text) == alone
    assert grammars.matches(calls_only(CALLS, several=True), text) == several
    assert grammars.matches(calls_only(CALLS, several=False, answer={"type": "object"}), text) == with_answer


def test_references_stay_inside_their_schema(grammars: TinyGrammars) -> None:
    schemas = [{"$ref": "#/$defs/It", "$defs": {"It": {"const": value}}} for value in (1, 2)]
    grammar = calls_only([Tagged("a", schemas[0], ""), Tagged("b", schemas[1], "")], several=False)
    assert [text for text in ("a1", "a2", "b1", "b2") if grammars.matches(grammar, text)] == ["a1", "b2"]
