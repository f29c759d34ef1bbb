from __future__ import annotations

from benchmarks.phrase_ban import contains, parse_arguments, phrases_of, prompts

TEXTS = ["The museum has old paintings.", "A museum in winter.", "The paintings of winter gardens."]


def test_phrases_occur_in_the_texts_in_another_casing() -> None:
    phrases = phrases_of(TEXTS, 5)
    assert len(phrases) == 5
    for phrase in phrases:
        assert any(contains(text, [phrase.casefold()]) for text in TEXTS)
    assert not contains("Nothing of it", [phrase.casefold() for phrase in phrases])


def test_texts_without_words_have_pieces() -> None:
    phrases = phrases_of(["\ufffd#x[\ufffd??]y"], 3)
    assert phrases
    assert all(3 <= len(phrase) <= 6 for phrase in phrases)


def test_prompts_repeat_after_all_were_used() -> None:
    found = [prompt[0]["content"] for prompt in prompts(500)]
    assert len(set(found)) == 440
    assert found[440] == found[0]


def test_smoke_changes_defaults_only() -> None:
    assert (parse_arguments(["--smoke"]).outputs, parse_arguments([]).outputs) == (16, 2000)
    assert parse_arguments(["--smoke", "--outputs", "3"]).outputs == 3
