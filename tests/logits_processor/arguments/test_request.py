"""Flat arguments are checked against the declared processors."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.request_args import (
    FLAG_NAMES,
    LOGIT_BIAS,
    VOCAB_SIZE,
    AliasProcessor,
    Flag,
    OpenProcessor,
    WindowProcessor,
    declare,
    named_refusal,
    refusal,
    settle,
    validator,
)

from fastdeploy_lp.config.option_values import spec_of
from fastdeploy_lp.logits_processor import (
    LogitsProcessor,
    load_processors,
)
from fastdeploy_lp.request.sampling_params import SamplingParams


@pytest.mark.parametrize("nothing", [None, {}])
def test_no_arguments_are_always_fine(nothing: dict[str, Any] | None) -> None:
    assert settle(validator(), nothing) == {}
    assert settle(validator(*LOGIT_BIAS), nothing) == {}


biases = st.dictionaries(st.integers(0, VOCAB_SIZE - 1), st.floats(-1e9, 1e9) | st.just(-math.inf), max_size=8)


@settings(max_examples=50)
@given(biases)
def test_token_ids_that_json_made_strings_become_integers_again(logit_bias: dict[int, float]) -> None:
    sent = json.loads(json.dumps({"logit_bias": logit_bias}))
    settled = settle(validator(*LOGIT_BIAS), sent)
    assert settled == {"logit_bias": logit_bias}
    assert all(type(token) is int and type(bias) is float for token, bias in settled["logit_bias"].items())


@settings(max_examples=25)
@given(biases)
def test_settled_arguments_are_settled(logit_bias: dict[int, float]) -> None:
    checks = validator(*LOGIT_BIAS)
    settled = settle(checks, {"logit_bias": logit_bias})
    assert settle(checks, settled) == settled


def test_the_callers_arguments_are_left_as_they_were() -> None:
    args = {"logit_bias": {"5": 1}}
    settled = settle(validator(*LOGIT_BIAS), args)
    assert settled == {"logit_bias": {5: 1.0}}
    assert args == {"logit_bias": {"5": 1}}


def test_a_bias_of_minus_infinity_is_a_ban() -> None:
    assert settle(validator(*LOGIT_BIAS), {"logit_bias": {"5": -math.inf}}) == {"logit_bias": {5: -math.inf}}


def test_null_leaves_the_bias_out() -> None:
    assert settle(validator(*LOGIT_BIAS), {"logit_bias": None}) == {"logit_bias": None}


@pytest.mark.parametrize("token", [VOCAB_SIZE, str(VOCAB_SIZE), "10000000000000000000000", -1, "-1"])
def test_a_token_outside_the_vocabulary_is_named_with_the_vocabularys_size(token: object) -> None:
    error = refusal(validator(*LOGIT_BIAS), {"logit_bias": {"3": 1.0, token: 1.0}})
    assert error.path == f"logits_processors_args.logit_bias.{token}"
    assert str(VOCAB_SIZE) in error.reason


@pytest.mark.parametrize(
    "token",
    ["hello", "1.5", "", "0x10", "nan", "042", "00", "-0", " 42", "42 ", "4_2", "+42", "42.0", "4e1", "٤٢", "４２"],
)
def test_a_token_that_is_no_integer_is_named(token: str) -> None:
    error = refusal(validator(*LOGIT_BIAS), {"logit_bias": {token: 1.0}})
    assert error.path == f"logits_processors_args.logit_bias.{token}"
    assert "integer" in error.reason


@pytest.mark.parametrize("token", [42.0, True])
def test_a_key_that_is_no_whole_number_of_a_program_is_refused(token: Any) -> None:
    assert "integer" in refusal(validator(*LOGIT_BIAS), {"logit_bias": {token: 1.0}}).reason


def test_a_token_as_number_and_as_string_is_one_token_twice() -> None:
    error = refusal(validator(*LOGIT_BIAS), {"logit_bias": {42: 1.0, "42": 5.0}})
    assert error.path == "logits_processors_args.logit_bias"
    assert "42 is given twice" in error.reason


@pytest.mark.parametrize("bias", [math.nan, math.inf, 2e9, -2e9, 1e308, "much", None, [1.0], {"a": 1}])
def test_a_bias_that_is_no_usable_number_is_named(bias: object) -> None:
    error = refusal(validator(*LOGIT_BIAS), {"logit_bias": {"3": 1.0, "7": bias}})
    assert error.path == "logits_processors_args.logit_bias.7"


@pytest.mark.parametrize("value", [5, "text", [1, 2], [[3, 1.0]], True])
def test_a_logit_bias_that_is_no_mapping_is_refused(value: object) -> None:
    assert refusal(validator(*LOGIT_BIAS), {"logit_bias": value}).path == "logits_processors_args.logit_bias"


def test_an_argument_that_no_processor_knows_lists_what_there_is() -> None:
    error = refusal(validator(*LOGIT_BIAS, *declare(WindowProcessor)), {"logit_bais": {}})
    assert error.path == "logits_processors_args.logit_bais"
    for known in ("LogitBiasLogitsProcessor", "WindowProcessor", "logit_bias", "mode", "window"):
        assert known in error.reason


def test_without_processors_every_argument_is_refused_with_the_option_to_start_with() -> None:
    error = refusal(validator(), {"logit_bias": {"1": 1.0}})
    assert error.path == "logits_processors_args.logit_bias"
    assert "--logits-processors" in error.reason


@pytest.mark.parametrize("name", FLAG_NAMES)
@pytest.mark.parametrize("form", ["flat", "named"])
def test_a_processor_without_params_takes_what_its_code_mentions(name: str, form: str) -> None:
    declared = declare(Flag)
    given: Any = {"extra_args": {name: 1}} if form == "flat" else {"logits_processors": {"Flag": {name: 1}}}
    selection = validator(*declared, *LOGIT_BIAS).validate(SamplingParams(**given))
    assert selection.args_for("Flag") == {name: 1}
    assert declared[0].is_meant_for(selection)


@pytest.mark.parametrize("name", ["enable_flg", "read", "append", ""])
def test_an_argument_that_no_code_mentions_is_refused(name: str) -> None:
    checks = validator(*declare(Flag), *LOGIT_BIAS)
    error = named_refusal(checks, extra_args={name: 1})
    assert error.path == f"extra_args.{name}"
    assert "Flag" in error.reason
    assert "accepts_any_args" in error.reason
    error = named_refusal(checks, logits_processors={"Flag": {name: 1}})
    assert error.path == f"logits_processors.Flag.{name}"


@pytest.mark.parametrize("cls", [Flag, OpenProcessor])
def test_what_the_params_of_another_claim_is_no_use_of_a_processor_without(cls: type[LogitsProcessor]) -> None:
    objects: dict[str, object] = {spec_of(each): each for each in (cls, WindowProcessor)}
    declared = load_processors([*objects, "LogitBiasLogitsProcessor"], objects)
    checks = validator(*declared)

    def meant(**fields: Any) -> list[str]:
        selection = checks.validate(SamplingParams(**fields))
        return [processor.name for processor in declared if processor.is_meant_for(selection)]

    assert meant(logit_bias={5: 1.0}) == ["LogitBiasLogitsProcessor"]
    assert meant(logits_processors_args={"window": 2}) == ["WindowProcessor"]
    assert meant(logits_processors_args={"enable_flag": 1, "window": 2}) == [cls.__name__, "WindowProcessor"]
    assert meant() == []


def test_a_processor_that_accepts_any_args_takes_any_argument() -> None:
    args = {"anything": [1, {"deep": None}], "logit_bias_2": "x"}
    assert settle(validator(*declare(OpenProcessor)), args) == args


def test_beside_an_open_processor_known_arguments_are_still_checked() -> None:
    checks = validator(*declare(OpenProcessor), *LOGIT_BIAS)
    assert settle(checks, {"anything": 1, "logit_bias": {"3": 2}}) == {"anything": 1, "logit_bias": {3: 2.0}}
    assert refusal(checks, {"anything": 1, "logit_bias": {"x": 2}}).path == "logits_processors_args.logit_bias.x"


def test_argument_names_are_strings() -> None:
    assert refusal(validator(*declare(OpenProcessor)), {5: 1}).path == "logits_processors_args.5"  # type: ignore[dict-item]


def test_a_processor_whose_arguments_are_not_used_requires_none() -> None:
    checks = validator(*declare(WindowProcessor), *LOGIT_BIAS)
    assert settle(checks, {"logit_bias": {"3": 2}}) == {"logit_bias": {3: 2.0}}


def test_required_arguments_of_a_used_processor_are_required() -> None:
    error = refusal(validator(*declare(WindowProcessor)), {"mode": "hard"})
    assert error.path == "logits_processors_args.window"


def test_defaults_are_not_written_into_the_request() -> None:
    assert settle(validator(*declare(WindowProcessor)), {"window": "4"}) == {"window": 4}


def test_an_argument_with_an_alias_goes_by_its_alias_and_is_settled() -> None:
    checks = validator(*declare(AliasProcessor))
    assert settle(checks, {"max-run": "5"}) == {"max-run": 5}
    assert refusal(checks, {"max-run": "x"}).path == "logits_processors_args.max-run"
    assert refusal(checks, {"max_run": 5}).path == "logits_processors_args.max_run"
