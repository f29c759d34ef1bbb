from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import (
    DeclaredProcessor,
    LogitsProcessor,
    RequestArgsError,
    RequestArgsValidator,
    load_processors,
)

VOCAB_SIZE = 100


class _Plain(LogitsProcessor):
    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None: ...

    def apply(self, logits: Any) -> Any:
        return logits


class OpenProcessor(_Plain):
    """Says nothing about its arguments."""


class WindowParams(BaseModel):
    window: int
    mode: str = "soft"


class WindowProcessor(_Plain):
    Params = WindowParams


class AliasParams(BaseModel):
    max_run: int = Field(default=3, alias="max-run")


class AliasProcessor(_Plain):
    Params = AliasParams


def declare(*classes: type[LogitsProcessor]) -> list[DeclaredProcessor]:
    return [DeclaredProcessor(cls.__name__, f"here:{cls.__name__}", cls) for cls in classes]


LOGIT_BIAS = load_processors(["LogitBiasLogitsProcessor"])


def validator(*declared: DeclaredProcessor) -> RequestArgsValidator:
    return RequestArgsValidator(list(declared), VOCAB_SIZE)


def refusal(checks: RequestArgsValidator, args: dict[str, Any]) -> RequestArgsError:
    with pytest.raises(RequestArgsError) as caught:
        checks.validate(args)
    error = caught.value
    assert str(error) == f"{error.path}: {error.reason}"
    assert "\n" not in str(error)
    return error


@pytest.mark.parametrize("nothing", [None, {}])
def test_no_arguments_are_always_fine(nothing: dict[str, Any] | None) -> None:
    assert validator().validate(nothing) == {}
    assert validator(*LOGIT_BIAS).validate(nothing) == {}


biases = st.dictionaries(
    st.integers(0, VOCAB_SIZE - 1), st.floats(allow_nan=False).filter(lambda x: x != math.inf), max_size=8
)


@settings(deadline=None, max_examples=50)
@given(biases)
def test_token_ids_that_json_made_strings_become_integers_again(logit_bias: dict[int, float]) -> None:
    sent = json.loads(json.dumps({"logit_bias": logit_bias}))
    settled = validator(*LOGIT_BIAS).validate(sent)
    assert settled == {"logit_bias": logit_bias}
    assert all(type(token) is int and type(bias) is float for token, bias in settled["logit_bias"].items())


@settings(deadline=None, max_examples=25)
@given(biases)
def test_settled_arguments_are_settled(logit_bias: dict[int, float]) -> None:
    checks = validator(*LOGIT_BIAS)
    settled = checks.validate({"logit_bias": logit_bias})
    assert checks.validate(settled) == settled


def test_the_callers_arguments_are_left_as_they_were() -> None:
    args = {"logit_bias": {"5": 1}}
    settled = validator(*LOGIT_BIAS).validate(args)
    assert settled == {"logit_bias": {5: 1.0}}
    assert args == {"logit_bias": {"5": 1}}


def test_a_bias_of_minus_infinity_is_a_ban() -> None:
    assert validator(*LOGIT_BIAS).validate({"logit_bias": {"5": -math.inf}}) == {"logit_bias": {5: -math.inf}}


def test_null_leaves_the_bias_out() -> None:
    assert validator(*LOGIT_BIAS).validate({"logit_bias": None}) == {"logit_bias": None}


@pytest.mark.parametrize("token", [VOCAB_SIZE, str(VOCAB_SIZE), "10000000000000000000000", -1, "-1"])
def test_a_token_outside_the_vocabulary_is_named_with_the_vocabularys_size(token: object) -> None:
    error = refusal(validator(*LOGIT_BIAS), {"logit_bias": {"3": 1.0, token: 1.0}})
    assert error.path == f"logits_processors_args.logit_bias.{token}"
    assert str(VOCAB_SIZE) in error.reason


@pytest.mark.parametrize("token", ["hello", "1.5", "", "0x10", "nan"])
def test_a_token_that_is_no_integer_is_named(token: str) -> None:
    error = refusal(validator(*LOGIT_BIAS), {"logit_bias": {token: 1.0}})
    assert error.path == f"logits_processors_args.logit_bias.{token}"
    assert "integer" in error.reason


@pytest.mark.parametrize("bias", [math.nan, math.inf, "much", None, [1.0], {"a": 1}])
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


def test_a_processor_without_params_takes_any_argument() -> None:
    args = {"anything": [1, {"deep": None}], "logit_bias_2": "x"}
    assert validator(*declare(OpenProcessor)).validate(args) == args


def test_beside_an_open_processor_known_arguments_are_still_checked() -> None:
    checks = validator(*declare(OpenProcessor), *LOGIT_BIAS)
    assert checks.validate({"anything": 1, "logit_bias": {"3": 2}}) == {"anything": 1, "logit_bias": {3: 2.0}}
    assert refusal(checks, {"anything": 1, "logit_bias": {"x": 2}}).path == "logits_processors_args.logit_bias.x"


def test_argument_names_are_strings() -> None:
    assert refusal(validator(*declare(OpenProcessor)), {5: 1}).path == "logits_processors_args.5"  # type: ignore[dict-item]


def test_a_processor_whose_arguments_are_not_used_requires_none() -> None:
    checks = validator(*declare(WindowProcessor), *LOGIT_BIAS)
    assert checks.validate({"logit_bias": {"3": 2}}) == {"logit_bias": {3: 2.0}}


def test_required_arguments_of_a_used_processor_are_required() -> None:
    error = refusal(validator(*declare(WindowProcessor)), {"mode": "hard"})
    assert error.path == "logits_processors_args.window"


def test_defaults_are_not_written_into_the_request() -> None:
    assert validator(*declare(WindowProcessor)).validate({"window": "4"}) == {"window": 4}


def test_an_argument_with_an_alias_goes_by_its_alias_and_is_settled() -> None:
    checks = validator(*declare(AliasProcessor))
    assert checks.validate({"max-run": "5"}) == {"max-run": 5}
    assert refusal(checks, {"max-run": "x"}).path == "logits_processors_args.max-run"
    assert refusal(checks, {"max_run": 5}).path == "logits_processors_args.max_run"
