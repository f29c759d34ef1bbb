from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pieces import cut, cuts

from fastdeploy_lp.engine.reasoning_parsers import REASONING_PARSERS, SplitText, find_reasoning_parser

THOUGHT = "<think>\nHm, <b>?\n</think>\n\nYes </think>."


def read(name: str, pieces: Sequence[str]) -> tuple[SplitText, int]:
    parser = find_reasoning_parser(name)()
    parts = [*map(parser.push, pieces), parser.finish()]
    whole = SplitText("".join(part.reasoning for part in parts), "".join(part.content for part in parts))
    return whole, parser.length


@pytest.mark.parametrize(
    ("name", "text", "reasoning", "content"),
    [
        ("qwen3", THOUGHT, "\nHm, <b>?\n", "\n\nYes </think>."),
        ("qwen3", "\n" + THOUGHT, "\nHm, <b>?\n", "\n\nYes </think>."),
        ("qwen3", "Yes.", "", "Yes."),
        ("qwen3", "Yes, <think> is a tag.", "", "Yes, <think> is a tag."),
        ("qwen3", "<thin", "", "<thin"),
        ("qwen3", "<think>never end", "never end", ""),
        ("qwen3", "", "", ""),
        ("deepseek_r1", THOUGHT, "\nHm, <b>?\n", "\n\nYes </think>."),
        ("deepseek_r1", "Hm.</think>Yes.", "Hm.", "Yes."),
        ("deepseek_r1", "Hm, no end </thin", "Hm, no end </thin", ""),
        ("deepseek_r1", "<thin", "<thin", ""),
        ("deepseek_r1", "", "", ""),
    ],
)
def test_reasoning_is_told_from_the_answer(name: str, text: str, reasoning: str, content: str) -> None:
    split, length = read(name, [text])
    assert split == SplitText(reasoning, content)
    assert text[length:] == content


@given(
    name=st.sampled_from(sorted(REASONING_PARSERS)),
    parts=st.lists(st.sampled_from(["<think>", "</think>", "<", "th", "ink>", " ", "\n", "é🙂", "word"]), max_size=8),
    sizes=cuts,
)
def test_pieces_give_what_the_whole_text_gives(name: str, parts: list[str], sizes: list[int]) -> None:
    text = "".join(parts)
    whole = read(name, [text])
    assert read(name, cut(text, sizes)) == whole
    split, length = whole
    assert text[length:] == split.content
    assert split.reasoning in text[:length]


def test_nothing_that_is_certain_waits() -> None:
    parser = find_reasoning_parser("qwen3")()
    assert [parser.push(piece).reasoning for piece in ("<think>", "one ", "two <", "3")] == ["", "one ", "two ", "<3"]
    assert parser.push("</think>Yes") == SplitText("", "Yes")


def test_an_unknown_parser_is_told_the_known_ones() -> None:
    with pytest.raises(ValueError, match="reasoning_parser: 'o1' is none of deepseek_r1, qwen3"):
        find_reasoning_parser("o1")
