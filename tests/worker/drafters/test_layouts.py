"""Layouts: which marks and white space came after which in a client's texts."""

from __future__ import annotations

from fastdeploy_lp.worker.drafters import layouts
from fastdeploy_lp.worker.drafters.layouts import Layout, Layouts, Marks

TEXTS = ["{", "\n ", ' "', '":', '",', '"', "\n", "}", "name", "7", ' "x', "", "[", "]"]
OPEN, BREAK, QUOTE, COLON, COMMA, END, LINE, CLOSE, NAME, SEVEN, MIXED, EMPTY, LIST, ENDS = range(len(TEXTS))
PERSON = [OPEN, BREAK, QUOTE, NAME, COLON, QUOTE, NAME, COMMA, BREAK, QUOTE, NAME, COLON, QUOTE, NAME, END, LINE, CLOSE]


def token_bytes(token: int) -> bytes:
    return TEXTS[token].encode()


def learned(*texts: list[int]) -> Layout:
    layout = Layouts(token_bytes).of("client")
    for text in texts:
        layout.learn(text, 0)
    return layout


def test_marks_have_no_other_character() -> None:
    marks = Marks(token_bytes)
    assert [token for token in range(len(TEXTS)) if marks.code(token) == layouts.OTHER] == [NAME, SEVEN, MIXED, EMPTY]


def test_a_run_of_marks_is_that_of_the_last_text_and_ends_where_another_token_came() -> None:
    layout = learned(PERSON)
    assert layout.run([OPEN], 8) == [BREAK, QUOTE]
    assert layout.run([NAME, COMMA], 8) == [BREAK, QUOTE]
    assert layout.run([NAME, COMMA], 1) == [BREAK]
    assert layout.run([NAME, END], 8) == [LINE, CLOSE]
    assert layout.run([NAME, COLON], 8) == [QUOTE]
    assert layout.run([NAME], 8) == layout.run([SEVEN, BREAK], 8) == layout.run([], 8) == []
    layout.learn([OPEN, QUOTE, NAME], 0)
    assert layout.run([OPEN], 8) == [QUOTE]


def test_forced_bytes_are_followed_by_the_longest_mark_that_began_with_them() -> None:
    layout = learned(PERSON)
    assert layout.after([NAME], b'"') == (COLON, COMMA, END)
    assert layout.after([NAME], b'",') == (COMMA,)
    assert layout.after([NAME], b"x") == ()


def test_several_continuations_are_known_the_newest_first() -> None:
    layout = learned([OPEN, LIST, NAME], [OPEN, BREAK, NAME], [OPEN, QUOTE, NAME], [OPEN, LIST, NAME])
    assert layout.after([OPEN], b"") == (LIST, QUOTE, BREAK)
    # Another token that came last ends them.
    layout.learn([OPEN, NAME], 0)
    assert layout.after([OPEN], b"") == ()


def test_a_draft_goes_on_after_the_tokens_before_it() -> None:
    following = learned(PERSON).following([NAME, COMMA])
    assert following([], b"") == (BREAK,)
    assert following([BREAK], b"") == (QUOTE,)
    assert following([BREAK, QUOTE, NAME], b"") == ()


def test_only_marks_are_kept_and_only_so_many_places() -> None:
    layout = learned(PERSON, [OPEN, MIXED, NAME, SEVEN])
    kept = {token for tokens in layout._next.values() for token in tokens} - {layouts.OTHER}
    assert all(Marks(token_bytes).text(token) for token in kept)
    pairs = [(first, second) for first in range(200) for second in range(4)]
    many = Layouts(lambda _: b" ").of("client")
    for first, second in pairs:
        many.learn([first, second, 0], 2)
    assert len(many._next) == layouts.MOST_PLACES
    assert many.after([199, 3], b"") == (0,)
    assert many.after([0, 1], b"") == ()


def test_each_client_has_its_own_layout_and_only_the_latest_ones_are_kept() -> None:
    made = Layouts(token_bytes)
    made.of("a").learn(PERSON, 0)
    assert made.of("a").run([OPEN], 8)
    assert made.of("b").run([OPEN], 8) == []
    for index in range(layouts.MOST_CLIENTS - 1):
        made.of(f"client {index}")
    assert made.of("a").run([OPEN], 8) == []
