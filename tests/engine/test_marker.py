from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_lp.engine.marker import beginning_at_end, cut_at


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("", False, "")),
        ("plain", ("plain", False, "")),
        ("a<end>b<end>", ("a", True, "b<end>")),
        ("a<en", ("a", False, "<en")),
        ("a<<e", ("a<", False, "<e")),
        ("<end", ("", False, "<end")),
    ],
)
def test_text_is_cut_at_the_marker_or_what_may_become_it(text: str, expected: tuple[str, bool, str]) -> None:
    assert cut_at(text, "<end>") == expected


@given(text=st.text("<ab", max_size=8), marker=st.text("<ab", min_size=1, max_size=4))
def test_what_waits_is_the_longest_end_that_the_marker_begins_with(text: str, marker: str) -> None:
    sizes = [size for size in range(1, len(marker)) if size <= len(text) and text.endswith(marker[:size])]
    assert beginning_at_end(text, marker) == max(sizes, default=0)
