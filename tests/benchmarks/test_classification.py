from __future__ import annotations

import pytest

from benchmarks.classification import LABELS, named_in, parse_arguments, texts


def test_the_texts_are_distinct_and_name_no_label() -> None:
    found = texts(500)
    assert len(set(found)) == 500
    assert {named_in(text) for text in found} == {None}


@pytest.mark.parametrize(
    ("text", "label"),
    [("It is Positive.", "positive"), ("negative", "negative"), ("positive or negative", None), ("good", None)],
)
def test_an_answer_names_one_label_or_none(text: str, label: str | None) -> None:
    assert named_in(text) == label
    assert label is None or label in LABELS


def test_smoke_changes_defaults_only() -> None:
    assert (parse_arguments(["--smoke"]).texts, parse_arguments([]).texts) == (8, 500)
    assert parse_arguments(["--smoke", "--texts", "3", "--checked", "1"]).texts == 3
