from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, model_validator
from support.faulty import PLUGIN
from support.processors import YourLogitsProcessor
from transformers import TemperatureLogitsWarper

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.engine_args import spec_of
from fastdeploy_lp.logits_processor import (
    DeclaredProcessor,
    LogitsProcessor,
    RequestArgsError,
    RequestArgsValidator,
    Selection,
    load_processors,
    vllm_v1,
)
from fastdeploy_lp.sampling_params import SamplingParams

VOCAB_SIZE = 100


class _Plain(LogitsProcessor):
    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None: ...

    def apply(self, logits: Any) -> Any:
        return logits


class OpenProcessor(_Plain):
    """Says nothing about its arguments, but that there are some."""

    accepts_any_args = True


class Flag(_Plain):
    """Reads its arguments as FastDeploy's document does, and declares none of them."""

    KEY = "from_a_class_attribute"

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        for args in share_inputs["logits_processors_args"]:
            self.read = [args.enable_flag, args.get("flag_strength"), args[self.KEY], _helped(args), args.get(FLAG_KEY)]


def _helped(args: Mapping[str, Any]) -> Any:
    return args.get("from_a_helper")


FLAG_KEY = "from_a_constant"
FLAG_NAMES = ("enable_flag", "flag_strength", "from_a_class_attribute", "from_a_helper", "from_a_constant")


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
    return load_processors([spec_of(cls) for cls in classes], {spec_of(cls): cls for cls in classes})


LOGIT_BIAS = load_processors(["LogitBiasLogitsProcessor"])


def validator(*declared: DeclaredProcessor) -> RequestArgsValidator:
    return RequestArgsValidator(list(declared), VOCAB_SIZE)


def settle(checks: RequestArgsValidator, args: dict[str, Any] | None) -> dict[str, Any]:
    """What becomes of these flat arguments."""
    selection = checks.validate(SamplingParams(logits_processors_args=args))
    assert (selection.named, selection.order) == (None, None)
    return selection.flat


def refusal(checks: RequestArgsValidator, args: dict[str, Any]) -> RequestArgsError:
    with pytest.raises(RequestArgsError) as caught:
        settle(checks, args)
    error = caught.value
    assert str(error) == f"{error.path}: {error.reason}"
    assert "\n" not in str(error)
    return error


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


# Every form of asking

NO_VOCABULARY = 99999999


def named_refusal(checks: RequestArgsValidator, **form: Any) -> RequestArgsError:
    with pytest.raises(RequestArgsError) as caught:
        checks.validate(SamplingParams(**form))
    assert "\n" not in str(caught.value)
    return caught.value


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
    class Cold(_Plain):
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


class RangeProcessor(_Plain):
    Params = RangeParams


def test_openais_logit_bias_needs_a_processor_that_takes_it() -> None:
    """One whose arguments are unknown might ignore it, and nothing may be ignored silently."""
    checks = validator(*declare(YourLogitsProcessor))
    with pytest.raises(RequestArgsError) as caught:
        checks.validate(SamplingParams(logit_bias={5: 1.0}))
    assert caught.value.path == "logit_bias"
    reading = validator(*declare(ReadsLogitBias))
    assert reading.validate(SamplingParams(logit_bias={5: 1.0})).flat


class ReadsLogitBias(_Plain):
    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        self.biases = [args.get("logit_bias") for args in share_inputs["logits_processors_args"]]
