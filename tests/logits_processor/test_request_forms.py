"""Every form in which a request selects processors and passes arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import BaseModel, model_validator
from support.faulty import PLUGIN
from support.processors import YourLogitsProcessor
from support.request_args import (
    LOGIT_BIAS,
    VOCAB_SIZE,
    OpenProcessor,
    Plain,
    WindowProcessor,
    declare,
    named_refusal,
    settle,
    validator,
)
from transformers import TemperatureLogitsWarper

from fastdeploy_lp.logits_processor import (
    RequestArgsError,
    RequestArgsValidator,
    Selection,
    load_processors,
    vllm_v1,
)
from fastdeploy_lp.request.sampling_params import SamplingParams

NO_VOCABULARY = 99999999


@pytest.fixture(scope="module")
def full() -> RequestArgsValidator:
    """The builtin twice, one with required arguments, and two that are reached by name alone."""
    objects: dict[str, object] = {
        "here:Window": WindowProcessor,
        "plugin=here:Plugin": PLUGIN,
        "here:Temperature": TemperatureLogitsWarper,
        "here:Vllm": VllmStyle,
    }
    specs = ["LogitBiasLogitsProcessor", "my_bias=LogitBiasLogitsProcessor", *objects]
    return RequestArgsValidator(load_processors(specs, objects), VOCAB_SIZE)


class VllmStyle(vllm_v1.LogitsProcessor):
    """The `validate_params` of vLLM's document."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        token = (sampling_params.extra_args or {}).get("target_token")
        if token is not None and not isinstance(token, int):
            raise ValueError(f"target_token value {token!r} is not int")

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None: ...

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None: ...

    def apply(self, logits: Any) -> Any:
        return logits


@pytest.mark.parametrize("field", ["logits_processors_args", "extra_args"])
def test_flat_fields_mean_the_same(full: RequestArgsValidator, field: str) -> None:
    given: Any = {field: {"logit_bias": {"5": 1}}}
    assert full.validate(SamplingParams(**given)) == Selection(flat={"logit_bias": {5: 1.0}})


@pytest.mark.parametrize("token", [5, "5"])
def test_openais_field_is_for_the_first_processor_that_takes_it(full: RequestArgsValidator, token: int | str) -> None:
    selection = full.validate(SamplingParams(logit_bias={token: 1}))
    assert selection == Selection(flat={"logit_bias": {5: 1.0}}, hidden={"my_bias": ("logit_bias",)})
    assert selection.args_for("LogitBiasLogitsProcessor") == {"logit_bias": {5: 1.0}}
    assert selection.args_for("my_bias") == {}
    only = validator(*LOGIT_BIAS).validate(SamplingParams(logit_bias={token: 1}))
    assert only == Selection(flat={"logit_bias": {5: 1.0}})


def test_openais_field_is_not_for_one_that_the_operator_has_in_shadow() -> None:
    declared = load_processors(["LogitBiasLogitsProcessor", "second=LogitBiasLogitsProcessor"])
    checks = RequestArgsValidator(declared, VOCAB_SIZE, shadow=["LogitBiasLogitsProcessor"])
    selection = checks.validate(SamplingParams(logit_bias={5: 1}))
    assert selection.args_for("second") == {"logit_bias": {5: 1.0}}
    assert selection.in_shadow().args_for("LogitBiasLogitsProcessor") == {"logit_bias": {5: 1.0}}


def test_flat_fields_stand_beside_each_other(full: RequestArgsValidator) -> None:
    params = SamplingParams(logits_processors_args={"window": "4"}, extra_args={"target_token": 7}, logit_bias={"5": 1})
    assert full.validate(params).flat == {"window": 4, "target_token": 7, "logit_bias": {5: 1.0}}


def test_empty_fields_are_no_fields(full: RequestArgsValidator) -> None:
    params = SamplingParams(logits_processors_args={}, extra_args={}, logit_bias={}, logits_processors=None)
    assert full.validate(params) == Selection()
    params = SamplingParams(extra_args={}, logit_bias={}, logits_processors={"my_bias": {}})
    assert full.validate(params) == Selection(named={"my_bias": {}})


FORMS = [
    lambda name, params: {name: params},
    lambda name, params: [{"name": name, "params": params}],
]


@pytest.mark.parametrize("form", FORMS, ids=["object", "list"])
@pytest.mark.parametrize(
    ("name", "given", "settled"),
    [
        ("my_bias", {"logit_bias": {"5": 1}}, {"logit_bias": {5: 1.0}}),
        ("my_bias", {}, {}),
        ("WindowProcessor", {"window": "4"}, {"window": 4}),
        ("plugin", {"fail": True}, {"fail": True}),
        ("TemperatureLogitsWarper", {"temperature": 0.5}, {"temperature": 0.5}),
        ("VllmStyle", {"target_token": 3}, {"target_token": 3}),
    ],
)
def test_named_processors_have_arguments_of_their_own(
    full: RequestArgsValidator, form: Any, name: str, given: dict[str, Any], settled: dict[str, Any]
) -> None:
    selection = full.validate(SamplingParams(logits_processors=form(name, given)))
    assert selection == Selection(named={name: settled})


def test_a_list_entry_may_leave_its_params_out(full: RequestArgsValidator) -> None:
    for entry in ({"name": "my_bias"}, {"name": "my_bias", "params": None}, {"name": "my_bias", "params": {}}):
        assert full.validate(SamplingParams(logits_processors=[entry])) == Selection(named={"my_bias": {}})


def test_only_a_lists_order_is_an_order(full: RequestArgsValidator) -> None:
    names = ["my_bias", "LogitBiasLogitsProcessor"]
    in_list = full.validate(SamplingParams(logits_processors=[{"name": name} for name in names]))
    assert in_list.order == ("my_bias", "LogitBiasLogitsProcessor")
    declared = full.validate(SamplingParams(logits_processors=[{"name": name} for name in reversed(names)]))
    assert declared.order is None
    in_object = full.validate(SamplingParams(logits_processors={name: {} for name in names}))
    assert (in_object.order, set(in_object.named or ())) == (None, set(names))


@pytest.mark.parametrize(
    ("chosen", "path"),
    [
        ({"my_bias": {"logit_bias": {NO_VOCABULARY: 1.0}}}, f"logits_processors.my_bias.logit_bias.{NO_VOCABULARY}"),
        ({"my_bias": {"logit_bias": {str(NO_VOCABULARY): 1}}}, f"logits_processors.my_bias.logit_bias.{NO_VOCABULARY}"),
        ({"my_bias": {"logit_bais": {}}}, "logits_processors.my_bias.logit_bais"),
        ({"my_bias": {"logit_bias": {"5": math.nan}}}, "logits_processors.my_bias.logit_bias.5"),
        ({"my_bias": 5}, "logits_processors.my_bias"),
        ({"my_bias": None}, "logits_processors.my_bias"),
        ({"my_bias": [1]}, "logits_processors.my_bias"),
        ({"my_bais": {}}, "logits_processors.my_bais"),
        ({5: {}}, "logits_processors.5"),
        ({"WindowProcessor": {}}, "logits_processors.WindowProcessor.window"),
        ({"WindowProcessor": {"window": "wide"}}, "logits_processors.WindowProcessor.window"),
        ({"plugin": {}}, "logits_processors.plugin.fail"),
        ({"plugin": {"fail": True, "more": 1}}, "logits_processors.plugin.more"),
        ({"VllmStyle": {"target_token": "x"}}, "logits_processors.VllmStyle"),
        ({"VllmStyle": {"deep": {"object": {1, 2}}}}, "logits_processors.VllmStyle.deep.object"),
        ({"TemperatureLogitsWarper": {}}, "logits_processors.TemperatureLogitsWarper.temperature"),
        (
            {"TemperatureLogitsWarper": {"temperature": 1.0, "more": 2}},
            "logits_processors.TemperatureLogitsWarper.more",
        ),
        ({"TemperatureLogitsWarper": {"temperature": -1.0}}, "logits_processors.TemperatureLogitsWarper"),
        ([{"name": "my_bias", "params": {"logit_bias": {"100": 1}}}], "logits_processors.0.params.logit_bias.100"),
        ([{"name": "my_bias"}, {"name": "my_bais"}], "logits_processors.1.name"),
        ([{"name": 5}], "logits_processors.0.name"),
        ([{"name": None}], "logits_processors.0.name"),
        ([{"name": "my_bias", "params": 5}], "logits_processors.0.params"),
        ([{"name": "my_bias", "parameters": {}}], "logits_processors.0.parameters"),
        ([{"params": {}}], "logits_processors.0"),
        ([{}], "logits_processors.0"),
        (["my_bias"], "logits_processors.0"),
        ([None], "logits_processors.0"),
        ([{"name": "WindowProcessor", "params": {"mode": "x"}}], "logits_processors.0.params.window"),
        ([{"name": "my_bias"}, {"name": "my_bias"}], "logits_processors.1.name"),
    ],
    ids=str,
)
def test_a_mistake_is_named_by_its_path(full: RequestArgsValidator, chosen: Any, path: str) -> None:
    assert named_refusal(full, logits_processors=chosen).path == path


@pytest.mark.parametrize("false", [0, "", False, []], ids=repr)
def test_params_that_are_no_object_are_refused_even_if_they_are_empty(full: RequestArgsValidator, false: Any) -> None:
    assert (
        named_refusal(full, logits_processors=[{"name": "my_bias", "params": false}]).path
        == "logits_processors.0.params"
    )


def test_an_unknown_name_lists_the_names_and_suggests_one(full: RequestArgsValidator) -> None:
    error = named_refusal(full, logits_processors={"my_bais": {}})
    assert "did you mean my_bias?" in error.reason
    for name in ("LogitBiasLogitsProcessor", "my_bias", "WindowProcessor", "plugin", "TemperatureLogitsWarper"):
        assert name in error.reason
    assert "did you mean" not in named_refusal(full, logits_processors={"zzz": {}}).reason
    assert "--logits-processors" in named_refusal(validator(), logits_processors={"my_bias": {}}).reason


def test_a_processor_named_twice_is_refused_with_the_way_out(full: RequestArgsValidator) -> None:
    error = named_refusal(full, logits_processors=[{"name": "my_bias"}, {"name": "plugin", "params": {"fail": 1}}] * 2)
    assert error.path == "logits_processors.2.name"
    assert "my_bias is named twice" in error.reason
    assert "alias" in error.reason


@pytest.mark.parametrize("field", ["logits_processors_args", "extra_args", "logit_bias"])
@pytest.mark.parametrize("chosen", [{"my_bias": {}}, [], {}], ids=str)
def test_flat_arguments_cannot_stand_beside_names(full: RequestArgsValidator, field: str, chosen: Any) -> None:
    flat: Any = {"5": 1.0} if field == "logit_bias" else {"target_token": 5}
    error = named_refusal(full, logits_processors=chosen, **{field: flat})
    assert error.path == field
    assert "logits_processors" in error.reason


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"logits_processors_args": {"target_token": 1}, "extra_args": {"target_token": 1}}, "extra_args.target_token"),
        ({"logits_processors_args": {"logit_bias": {}}, "logit_bias": {5: 1.0}}, "logit_bias"),
        ({"extra_args": {"logit_bias": {5: 1.0}}, "logit_bias": {5: 1.0}}, "logit_bias"),
    ],
    ids=str,
)
def test_an_argument_that_is_given_in_two_fields_is_refused(
    full: RequestArgsValidator, fields: dict[str, Any], path: str
) -> None:
    error = named_refusal(full, **fields)
    assert error.path == path
    assert "twice" in error.reason


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"extra_args": {"logit_bias": {"100": 1}}}, "extra_args.logit_bias.100"),
        ({"logit_bias": {"100": 1.0}}, "logit_bias.100"),
        ({"logit_bias": {"x": 1.0}}, "logit_bias.x"),
        ({"logit_bias": {5: math.nan}}, "logit_bias.5"),
        ({"extra_args": {"window": "wide"}}, "extra_args.window"),
    ],
    ids=str,
)
def test_a_flat_mistake_is_named_by_the_field_it_stands_in(
    full: RequestArgsValidator, fields: dict[str, Any], path: str
) -> None:
    assert named_refusal(full, **fields).path == path


@pytest.mark.parametrize("form", ["flat", "named"])
def test_a_processors_own_refusal_names_it(full: RequestArgsValidator, form: str) -> None:
    args = {"target_token": "x"}
    error = (
        named_refusal(full, extra_args=args)
        if form == "flat"
        else named_refusal(full, logits_processors={"VllmStyle": args})
    )
    assert error.reason == "VllmStyle: target_token value 'x' is not int"
    assert error.path == ("extra_args" if form == "flat" else "logits_processors.VllmStyle")
    in_list = [{"name": "my_bias"}, {"name": "VllmStyle", "params": args}]
    assert named_refusal(full, logits_processors=in_list).path == "logits_processors.1"


def test_a_refusal_of_what_the_request_does_not_say_to_the_processor_has_no_path() -> None:
    class Cold(Plain):
        @classmethod
        def validate_params(cls, sampling_params: SamplingParams) -> None:
            if sampling_params.temperature > 1:
                raise ValueError("too hot")

    error = named_refusal(validator(*declare(Cold)), temperature=2.0)
    assert (error.path, error.reason, str(error)) == (None, "Cold: too hot", "Cold: too hot")


def test_a_request_that_names_others_is_not_asked_about(full: RequestArgsValidator) -> None:
    selection = full.validate(SamplingParams(logits_processors={"my_bias": {}}))
    assert set(selection.named or ()) == {"my_bias"}


@pytest.mark.parametrize("args", [{"fail": True}, {"temperature": 0.5}], ids=str)
def test_processors_by_name_alone_are_not_reached_by_flat_arguments(args: dict[str, Any]) -> None:
    objects: dict[str, object] = {"plugin=here:Plugin": PLUGIN, "here:Temperature": TemperatureLogitsWarper}
    declared = load_processors(["LogitBiasLogitsProcessor", *objects], objects)
    error = named_refusal(RequestArgsValidator(declared, VOCAB_SIZE), extra_args=args)
    assert error.path == f"extra_args.{next(iter(args))}"
    beside_open = load_processors(["here:Open", *objects], {**objects, "here:Open": OpenProcessor})
    selection = RequestArgsValidator(beside_open, VOCAB_SIZE).validate(SamplingParams(extra_args=args))
    assert [each.name for each in beside_open if each.is_used_by(selection)] == ["OpenProcessor"]


def test_the_callers_parameters_are_left_as_they_were(full: RequestArgsValidator) -> None:
    chosen = [{"name": "my_bias", "params": {"logit_bias": {"5": 1}}}]
    params = SamplingParams(logits_processors=chosen)
    full.validate(params)
    assert params == SamplingParams(logits_processors=[{"name": "my_bias", "params": {"logit_bias": {"5": 1}}}])


@pytest.mark.parametrize("given", [{"low": 3, "high": 2}, {"low": 3}])
def test_rules_between_flat_arguments_are_checked(given: dict[str, Any]) -> None:
    checks = validator(*declare(RangeProcessor))
    assert settle(checks, {"low": 1, "high": 2}) == {"low": 1, "high": 2}
    with pytest.raises(RequestArgsError, match="low"):
        settle(checks, given)


class RangeParams(BaseModel):
    low: int = 0
    high: int = 1

    @model_validator(mode="after")
    def in_order(self) -> RangeParams:
        if self.low > self.high:
            raise ValueError("low must not be above high")
        return self


class RangeProcessor(Plain):
    Params = RangeParams


def test_openais_logit_bias_needs_a_processor_that_takes_it() -> None:
    """One whose arguments are unknown might ignore it, and nothing may be ignored silently."""
    checks = validator(*declare(YourLogitsProcessor))
    with pytest.raises(RequestArgsError) as caught:
        checks.validate(SamplingParams(logit_bias={5: 1.0}))
    assert caught.value.path == "logit_bias"
    reading = validator(*declare(ReadsLogitBias))
    assert reading.validate(SamplingParams(logit_bias={5: 1.0})).flat


class ReadsLogitBias(Plain):
    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        self.biases = [args.get("logit_bias") for args in share_inputs["logits_processors_args"]]


def test_no_code_of_a_processor_runs_that_a_request_has_not_named() -> None:
    """Flat arguments beside names are refused before a model reads them: who may run is told by the names alone."""
    ran: list[str] = []

    class NotedParams(BaseModel):
        x: int

        @model_validator(mode="after")
        def note(self) -> NotedParams:
            ran.append("Params")
            return self

    class Noted(Plain):
        Params = NotedParams

    checks = validator(*LOGIT_BIAS, *declare(Noted))
    both = {"logits_processors": {"LogitBiasLogitsProcessor": {}}, "logits_processors_args": {"x": 1}}
    assert checks.authors_of(SamplingParams(**both)) == frozenset()
    assert named_refusal(checks, **both).path == "logits_processors_args"
    assert ran == []
    assert checks.authors_of(SamplingParams(logits_processors_args={"x": 1})) == {"Noted"}
    checks.validate(SamplingParams(logits_processors_args={"x": 1}))
    assert ran == ["Params"]
