from __future__ import annotations

from typing import Any

import pytest

from fastdeploy_lp.request.prompt_options import PromptOptions


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"add_special_tokens": 1}, "add_special_tokens: must be true or false"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens: must be at least 1, or -1"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens: must be at least 1, or -1"),
        ({"truncate_prompt_tokens": True}, "truncate_prompt_tokens: must be at least 1, or -1"),
        ({"truncate_prompt_tokens": 1, "truncation_side": "both"}, "truncation_side: 'both' is none of left, right"),
        ({"truncation_side": "left"}, "truncation_side: only allowed together with truncate_prompt_tokens"),
        ({"max_length": 5}, r"tokenization_kwargs\.max_length: is unknown; allowed are add_special_tokens, "),
        ({"max_tokens": 5}, r"tokenization_kwargs\.max_tokens: is unknown"),
    ],
)
def test_an_option_that_means_nothing_is_named(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        PromptOptions.of(given)


def test_options_of_a_program_are_those_of_a_body() -> None:
    assert PromptOptions.of(None) == PromptOptions()
    given = {"truncate_prompt_tokens": 5, "truncation_side": "right", "add_special_tokens": False}
    assert PromptOptions.of(given, 7) == PromptOptions(**given, max_tokens=7)
