from __future__ import annotations

from typing import Any

import pytest

from fastdeploy_lp.config.speculation import DRAFT_MODEL, METHODS, Speculation, require_speculation, speculation_of
from fastdeploy_lp.messages import decoder, encode


@pytest.mark.parametrize("method", [*(each for each in METHODS if each != DRAFT_MODEL), "my_package.drafters:Mine"])
def test_text_and_object_are_equal(method: str) -> None:
    expected = Speculation(method, num_speculative_tokens=5)
    assert speculation_of(f'{{"method": "{method}", "num_speculative_tokens": 5}}') == expected
    assert speculation_of({"method": method, "num_speculative_tokens": 5}) == expected


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("{", "no valid JSON"),
        ("[]", "must be a JSON object"),
        (
            {"method": "medusa"},
            "'medusa' is not allowed; it must be one of auto, ngram, grammar, layout, forced, suffix, draft_model, or",
        ),
        ({"method": "draft_model"}, "model: None is not allowed with the method draft_model; it must be a model"),
        ({"method": ["auto", "draft_model"], "model": " "}, "model: ' ' is not allowed with the method draft_model"),
        ({"method": "draft_model", "model": 5}, "model: 5 is not allowed with the method draft_model"),
        ({"model": "smollm2-135m"}, "model: is allowed with the method draft_model only"),
        ({"method": "ngram", "quantization": "w8a8"}, "quantization: is allowed with the method draft_model only"),
        (
            {"method": "draft_model", "model": "m", "quantization": "int4"},
            "quantization: 'int4' is not allowed; it must be null or one of w8a8, w8a16",
        ),
        ({"method": ["ngram", 5]}, "method: 5 is not allowed"),
        ({"method": []}, "method: () is not allowed"),
        ({"method": {"ngram": 1}}, "method: {'ngram': 1} is not allowed"),
        ({"draft": 1}, "draft is not allowed; allowed are method, num_speculative_tokens"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens: 0 is not allowed; it must be an integer from 1 to 64"),
        ({"num_speculative_tokens": True}, "num_speculative_tokens: True"),
        ({"prompt_lookup_min": 9}, "prompt_lookup_min: must be at most prompt_lookup_max, which is 8"),
        ({"adaptive": 1}, "adaptive: 1 is not allowed"),
        (
            {"suffix_max_tokens": 9_999},
            "suffix_max_tokens: 9999 is not allowed; it must be an integer from 10000 to 10",
        ),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(given: Any, named: str) -> None:
    with pytest.raises(ValueError, match=r"^speculative_config: ") as caught:
        require_speculation("speculative_config", given)
    assert named in str(caught.value)


def test_a_list_of_methods_names_each_source_once() -> None:
    given = speculation_of('{"method": ["my_package.drafters:Mine", "auto", "ngram"]}')
    assert given is not None
    assert given.sources == ("my_package.drafters:Mine", "forced", "grammar", "layout", "ngram")


def test_suffix_is_no_part_of_auto() -> None:
    given = speculation_of({"method": ["auto", "suffix"]})
    assert given is not None
    assert given.sources == ("forced", "grammar", "layout", "ngram", "suffix")
    assert "suffix" not in Speculation().sources


@pytest.mark.parametrize("method", ["ngram", ["ngram", "my_package.drafters:Mine"]], ids=str)
def test_settings_survive_the_way_to_the_worker(method: str | list[str]) -> None:
    given = speculation_of({"method": method})
    assert given is not None
    assert decoder(Speculation).decode(encode(given)) == given
