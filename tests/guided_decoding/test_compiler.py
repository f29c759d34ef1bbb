"""Matchers and the cache of compiled grammars."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.grammars import TINY_EOS, TINY_VOCAB, TinyGrammars, allowed
from support.tiny import write_tiny_checkpoint

from fastdeploy_lp.guided_decoding.compiler import GrammarCompiler, GrammarError

LIST = r'start: "[" (NUMBER ("," NUMBER)*)? "]"' + "\nNUMBER: /[0-9]{1,3}/"


def test_a_mask_is_exactly_what_can_be_consumed(grammars: TinyGrammars) -> None:
    """Of every token of the vocabulary, at every place of a text."""
    text = grammars.tokens("[123,4]")
    for end in range(len(text) + 1):
        expected = set()
        for token in set(range(TINY_VOCAB)) - {TINY_EOS}:
            matcher = grammars.compiler.matcher(LIST)
            matcher.consume(text[:end])
            try:
                matcher.consume([token])
            except GrammarError:
                continue
            expected.add(token)
        matcher = grammars.compiler.matcher(LIST)
        matcher.consume(text[:end])
        assert allowed(matcher) - {TINY_EOS} == expected, end
        assert (TINY_EOS in allowed(matcher)) == (end == len(text))


def test_a_text_that_may_end_may_also_go_on(grammars: TinyGrammars) -> None:
    matcher = grammars.compiler.matcher("start: /a+b?/")
    assert TINY_EOS not in allowed(matcher)
    matcher.consume(grammars.tokens("a"))
    assert TINY_EOS in allowed(matcher)
    assert len(allowed(matcher)) > 1
    assert not matcher.is_complete
    matcher.consume(grammars.tokens("b"))
    assert matcher.is_complete


def test_every_end_of_sequence_may_come_where_one_may(tiny_directory: Path) -> None:
    several = TinyGrammars(tiny_directory, eos=(TINY_EOS, 0, 31, 63))
    matcher = several.compiler.matcher("start: /a+/")
    ends = {TINY_EOS, 0, 31, 63}
    assert not allowed(matcher) & (ends - set(several.tokens("a")))
    matcher.consume(several.tokens("aa"))
    assert ends <= allowed(matcher)


def test_matchers_of_one_grammar_know_nothing_of_each_other(grammars: TinyGrammars) -> None:
    first, second = grammars.compiler.matcher(LIST), grammars.compiler.matcher(LIST)
    fresh = allowed(second)
    first.consume(grammars.tokens("[1,2"))
    assert allowed(second) == fresh
    second.consume(grammars.tokens("[]"))
    assert second.is_complete
    assert not first.is_complete


@pytest.mark.parametrize("grammar", ["start: missing", "start: (", "start: /(/", '{"grammars": [{"json_schema": 5}]}'])
def test_a_bad_grammar_is_refused_each_time(grammars: TinyGrammars, grammar: str) -> None:
    for _ in range(2):
        with pytest.raises(GrammarError) as refused:
            grammars.compiler.matcher(grammar)
        assert str(refused.value)
        assert "\n" not in str(refused.value)


LONG = {"id": 511, "content": "a" * 5000, "special": False}
ADDED = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)


@pytest.mark.parametrize("field", [{"decoder": None}, {"added_tokens": [LONG | ADDED]}], ids=["decoder", "long token"])
def test_a_tokenizer_that_the_library_cannot_read_refuses_every_grammar(tmp_path: Path, field: dict[str, Any]) -> None:
    path = write_tiny_checkpoint(tmp_path) / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | field))
    compiler = GrammarCompiler(tmp_path, TINY_VOCAB, (TINY_EOS,), cache_size=2)
    for use in (compiler.prepare, lambda: compiler.matcher(LIST)) * 2:
        with pytest.raises(GrammarError, match=r"^the model's tokenizer does not suit guided decoding: .+$"):
            use()


def test_a_token_that_is_not_allowed_ends_the_matcher(grammars: TinyGrammars) -> None:
    matcher = grammars.compiler.matcher(LIST)
    with pytest.raises(GrammarError):
        matcher.consume(grammars.tokens("x"))
    with pytest.raises(GrammarError):
        allowed(matcher)


def test_the_cache_keeps_the_latest(tiny_directory: Path) -> None:
    grammars = TinyGrammars(tiny_directory, cache_size=2)
    compiler = grammars.compiler
    texts = [f'start: "{letter}"' for letter in "abcb"]
    for text in texts:
        compiler.matcher(text)
    assert list(compiler._compiled) == ['start: "c"', 'start: "b"']
    assert grammars.matches('start: "a"', "a")


def test_threads_share_one_compilation(tiny_directory: Path) -> None:
    compiler = TinyGrammars(tiny_directory).compiler
    with ThreadPoolExecutor(4) as threads:
        matchers = list(threads.map(compiler.matcher, [LIST] * 16))
    assert len(compiler._compiled) == 1
    masks = list(map(allowed, matchers))
    assert all(mask == masks[0] for mask in masks)
