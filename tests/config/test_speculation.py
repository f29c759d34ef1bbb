from __future__ import annotations

from typing import Any

import pytest

from fastdeploy_lp.config.speculation import METHODS, Speculation, require_speculation, speculation_of


@pytest.mark.parametrize("method", [*METHODS, "my_package.drafters:Mine"])
def test_text_and_object_are_equal(method: str) -> None:
    expected = Speculation(method, num_speculative_tokens=5)
    assert speculation_of(f'{{"method": "{method}", "num_speculative_tokens": 5}}') == expected
    assert speculation_of({"method": method, "num_speculative_tokens": 5}) == expected


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("{", "no valid JSON"),
        ("[]", "must be a JSON object"),
        ({"method": "medusa"}, "method: 'medusa' is not allowed; it must be one of auto, ngram, grammar, or module"),
        ({"draft": 1}, "draft is not allowed; allowed are method, num_speculative_tokens"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens: 0 is not allowed; it must be an integer from 1 to 64"),
        ({"num_speculative_tokens": True}, "num_speculative_tokens: True"),
        ({"prompt_lookup_min": 9}, "prompt_lookup_min: must be at most prompt_lookup_max, which is 8"),
        ({"adaptive": 1}, "adaptive: 1 is not allowed"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(given: Any, named: str) -> None:
    with pytest.raises(ValueError, match=r"^speculative_config: ") as caught:
        require_speculation("speculative_config", given)
    assert named in str(caught.value)
