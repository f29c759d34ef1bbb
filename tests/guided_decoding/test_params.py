"""What GuidedDecodingParams take."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from fastdeploy_lp import GuidedDecodingParams, SamplingParams
from fastdeploy_lp.request.guided_decoding import FORMS as NAMES
from fastdeploy_lp.request.guided_decoding import MAX_CHOICES, WHITESPACE_FIELDS

FORMS: dict[str, Any] = {
    "json": {"type": "object"},
    "json_object": True,
    "regex": "[0-9]+",
    "choice": ["a", "b"],
    "grammar": 'start: "a"',
    "structural_tag": {"triggers": ["<"], "structures": [{"begin": "<", "schema": {}, "end": ">"}]},
}


@pytest.mark.parametrize("kind", FORMS)
def test_each_form_alone_is_fine(kind: str) -> None:
    assert GuidedDecodingParams(**{kind: FORMS[kind]}).kind == kind


def test_there_is_a_case_for_every_form() -> None:
    assert set(FORMS) == set(NAMES)
    assert {*NAMES, *WHITESPACE_FIELDS, "disable_additional_properties", "when"} == set(
        GuidedDecodingParams.__struct_fields__
    )


@pytest.mark.parametrize("pair", list(combinations(FORMS, 2)), ids=str)
def test_two_forms_are_one_too_many(pair: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match=f"exactly one of .*, not {pair[0]}, {pair[1]}"):
        GuidedDecodingParams(**{kind: FORMS[kind] for kind in pair})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "guided_decoding: must have exactly one of .*, not none of them"),
        ({"json": 5}, "guided_decoding.json: must be an object or its JSON text, not int"),
        ({"json_object": False}, "guided_decoding.json_object: must be true"),
        ({"json_object": 1}, "guided_decoding.json_object: must be true"),
        ({"regex": ""}, "guided_decoding.regex: must be a string that is not empty"),
        ({"regex": 5}, "guided_decoding.regex: must be a string that is not empty, not int"),
        ({"grammar": ""}, "guided_decoding.grammar: must be a string"),
        ({"choice": []}, f"guided_decoding.choice: must be a list of 1 to {MAX_CHOICES} strings"),
        ({"choice": "ab"}, "guided_decoding.choice: must be a list"),
        ({"choice": ["a"] * (MAX_CHOICES + 1)}, "guided_decoding.choice: must be a list"),
        ({"choice": ["a", ""]}, "guided_decoding.choice.1: must be a string that is not empty"),
        ({"choice": ["a", 5]}, "guided_decoding.choice.1: must be a string"),
        ({"structural_tag": []}, "guided_decoding.structural_tag: must be an object"),
        ({"whitespace": "none"}, "guided_decoding: must have exactly one of .*, not none of them"),
        ({"json": {}, "whitespace": "some"}, "guided_decoding.whitespace: 'some' is none of bounded, any, none"),
        ({"json": {}, "whitespace_pattern": ""}, "whitespace_pattern: must be a regular expression of 1 to 128 char"),
        ({"json": {}, "whitespace_pattern": 5}, "whitespace_pattern: must be a regular expression of 1 to 128 char"),
        ({"json": {}, "whitespace_pattern": " " * 129}, "whitespace_pattern: must be a regular expression of 1 to 128"),
        ({"json": {}, "whitespace_pattern": "("}, "guided_decoding.whitespace_pattern: is no regular expression: .+"),
        ({"json": {}, "disable_any_whitespace": 1}, "guided_decoding.disable_any_whitespace: must be true or false"),
        ({"json": {}, "disable_additional_properties": 1}, "disable_additional_properties: must be true or false"),
        (
            {"json_object": True, "disable_additional_properties": True},
            "additional_properties: is allowed with json only",
        ),
        (
            {"json": {}, "whitespace": "any", "disable_any_whitespace": True},
            "guided_decoding.whitespace: only one of whitespace, disable_any_whitespace is allowed",
        ),
        (
            {"regex": "a", "whitespace": "none"},
            "guided_decoding.whitespace: is allowed with json, json_object, structural_tag, not regex",
        ),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GuidedDecodingParams(**given)


def test_sampling_params_take_nothing_else() -> None:
    assert SamplingParams(guided_decoding=GuidedDecodingParams(regex="a")).guided_decoding is not None
    with pytest.raises(ValueError, match="guided_decoding: must be GuidedDecodingParams"):
        SamplingParams(guided_decoding={"regex": "a"})  # type: ignore[arg-type]
