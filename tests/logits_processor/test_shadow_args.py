"""Which processors of a request run in shadow."""

from __future__ import annotations

from typing import Any

import pytest
import support.faulty as faulty
from support.processors import SetsToFive

from fastdeploy_lp.config.option_values import spec_of
from fastdeploy_lp.entrypoints.declare import declare_engine
from fastdeploy_lp.logits_processor import RequestArgsError, RequestArgsValidator, Selection, load_processors
from fastdeploy_lp.request.sampling_params import SamplingParams
from fastdeploy_lp.startup.engine_args import EngineArgs

BIAS, SECOND = "LogitBiasLogitsProcessor", "second"
ARGS = {"logit_bias": {5: 1.0}}
PLUGIN = "plugin"


def validator(*shadow: str) -> RequestArgsValidator:
    objects = {spec_of(SetsToFive): SetsToFive, f"{PLUGIN}=x:Y": faulty.PLUGIN}
    declared = load_processors([BIAS, f"{SECOND}={BIAS}", *objects], objects)
    return RequestArgsValidator(declared, 512, shadow=shadow)


def selected(*always: str, **fields: Any) -> Selection:
    return validator(*always).validate(SamplingParams(**fields))


def test_an_entry_of_a_list_says_so_itself() -> None:
    chosen = [{"name": SECOND, "params": ARGS, "shadow": True}, {"name": BIAS, "params": ARGS, "shadow": False}]
    assert selected(logits_processors=chosen) == Selection(named={SECOND: ARGS, BIAS: ARGS}, shadow=(SECOND,))


def test_a_field_names_them_whatever_form_selects_them() -> None:
    flat = selected(logits_processors_args=ARGS, logits_processors_shadow=[SECOND])
    assert flat == Selection(flat=ARGS, shadow=(SECOND,))
    named = selected(logits_processors={BIAS: ARGS, SECOND: ARGS}, logits_processors_shadow=[BIAS])
    assert named == Selection(named={BIAS: ARGS, SECOND: ARGS}, shadow=(BIAS,))
    both = [{"name": BIAS, "shadow": True}, {"name": SECOND}]
    assert selected(logits_processors=both, logits_processors_shadow=[BIAS, SECOND]).shadow == (BIAS, SECOND)


def test_the_order_is_that_of_the_others() -> None:
    def chosen(*shadow: str) -> Selection:
        names = ["SetsToFive", SECOND, BIAS]
        return selected(logits_processors=[{"name": name, "shadow": name in shadow} for name in names])

    assert chosen().order == ("SetsToFive", SECOND, BIAS)
    assert chosen(BIAS).order == ("SetsToFive", SECOND)
    assert chosen("SetsToFive").order == (SECOND, BIAS)
    # What is left stands in the declared order.
    assert chosen("SetsToFive", SECOND).order is None
    assert chosen("SetsToFive", SECOND, BIAS).order is None


def test_the_operators_run_for_every_request_that_they_see() -> None:
    assert selected(SECOND) == Selection(shadow=(SECOND,))
    assert selected(SECOND, logits_processors_args=ARGS).shadow == (SECOND,)
    assert selected(SECOND, logits_processors={SECOND: ARGS}).shadow == (SECOND,)
    assert selected(SECOND, logits_processors={BIAS: ARGS}).shadow == ()
    # A plugin works for those who name it.
    assert selected(PLUGIN).shadow == ()
    assert selected(PLUGIN, logits_processors={PLUGIN: {"fail": False}}).shadow == (PLUGIN,)


def test_arguments_of_one_in_shadow_reach_it_and_it_alone() -> None:
    selection = selected(logits_processors_args=ARGS, logits_processors_shadow=[SECOND])
    assert selection.args_for(BIAS) == ARGS
    assert selection.args_for(SECOND) == {}
    assert selection.in_shadow().args_for(SECOND) == ARGS


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"logits_processors_shadow": ["secnd"]}, "logits_processors_shadow.0"),
        ({"logits_processors_shadow": [BIAS, 7]}, "logits_processors_shadow.1"),
        ({"logits_processors_shadow": [PLUGIN]}, "logits_processors_shadow.0"),
        ({"logits_processors": {BIAS: ARGS}, "logits_processors_shadow": [SECOND]}, "logits_processors_shadow.0"),
        ({"logits_processors": [{"name": BIAS, "shadow": 1}]}, "logits_processors.0.shadow"),
        ({"logits_processors": [{"name": BIAS, "params": {"x": 1}, "shadow": True}]}, "logits_processors.0.params.x"),
        ({"logits_processors": [{"name": BIAS, "silent": True}]}, "logits_processors.0.silent"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(RequestArgsError) as caught:
        selected(**fields)
    assert caught.value.path == path


def test_the_operator_names_processors_that_are_declared() -> None:
    args = EngineArgs(model="smollm2-135m", logits_processors=[BIAS], shadow=["LogitBias"])
    with pytest.raises(ValueError, match=rf"^shadow: 'LogitBias' is not declared; declared are {BIAS}$"):
        declare_engine(args)
    with pytest.raises(ValueError, match=r"^shadow: must be a list of names, not 'x'$"):
        EngineArgs(model="smollm2-135m", shadow="x")  # type: ignore[arg-type]
