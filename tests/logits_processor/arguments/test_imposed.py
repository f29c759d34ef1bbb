"""What the operator imposes on a request's selection."""

from __future__ import annotations

from typing import Any

import pytest
from support.masks import CHAIN

from fastdeploy_lp.logits_processor import RequestArgsError, RequestArgsValidator, Selection, load_processors
from fastdeploy_lp.logits_processor.arguments.request import Imposed
from fastdeploy_lp.request.sampling_params import SamplingParams

DECLARED = load_processors(list(CHAIN))
VALIDATOR = RequestArgsValidator(DECLARED, 512)
BIAS = {"logit_bias": {7: 1.0}}


def chosen(imposed: Imposed, **fields: Any) -> Selection:
    return VALIDATOR.validate_imposed(SamplingParams(**fields), imposed)


def used(selection: Selection) -> list[str]:
    return [each.name for each in DECLARED if each.is_meant_for(selection)]


def test_a_forced_processor_has_the_operators_arguments_in_every_form() -> None:
    imposed = Imposed(forced={"late": BIAS})
    for fields in ({}, {"logits_processors_args": {"logit_bias": {9: 5.0}}}, {"logits_processors": {"early": BIAS}}):
        selection = chosen(imposed, **fields)
        assert dict(selection.args_for("late")) == BIAS
        assert "late" in used(selection)
        assert selection.secret == ("late",)
        assert not any(each.leaves_alone(selection) for each in DECLARED if each.name == "late")


def test_a_withheld_processor_sees_no_request() -> None:
    selection = chosen(Imposed(withheld=("late", "RowMask")), logits_processors_args=BIAS)
    assert not selection.args_for("late")
    assert not {"late", "RowMask"}.intersection(used(selection))
    assert [each.name for each in DECLARED if each.leaves_alone(selection)] == ["RowMask", "late"]


@pytest.mark.parametrize("field", ["logits_processors", "logits_processors_shadow"])
def test_a_secret_name_is_unknown(field: str) -> None:
    given: Any = {"late": {}} if field == "logits_processors" else ["late"]
    with pytest.raises(RequestArgsError) as caught:
        chosen(Imposed(forced={"late": BIAS}), **{field: given})
    assert "late" not in str(caught.value).partition("declared are")[2]
    assert str(caught.value.path).startswith(field)


def test_an_argument_of_withheld_processors_alone_is_unknown() -> None:
    with pytest.raises(RequestArgsError, match="no declared logits processor"):
        chosen(Imposed(withheld=("SequenceBiasLogitsProcessor",)), extra_args={"sequence_bias": [[[5], 1.0]]})


@pytest.mark.parametrize(
    ("fields", "runs"),
    [
        ({}, True),
        ({"logits_processors_args": {"sequence_bias": [[[5], 1.0]]}}, True),
        ({"logits_processors_args": {"logit_bias": {9: 1.0}}}, False),
        ({"logit_bias": {"9": 1.0}}, False),
        ({"logits_processors": {}}, False),
        ({"logits_processors": {"early": {}}}, False),
    ],
    ids=str,
)
def test_a_default_runs_unless_the_request_chooses(fields: dict[str, Any], runs: bool) -> None:
    selection = chosen(Imposed(default={"late": BIAS}), **fields)
    assert ("late" in selection.imposed) is runs
    assert not selection.secret


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (["early", "SequenceBiasLogitsProcessor"], None),
        (["SequenceBiasLogitsProcessor", "early"], ("SequenceBiasLogitsProcessor", "early", "RowMask", "VllmMask")),
        (["late", "Unbans"], ("late", "Unbans", "RowMask", "VllmMask")),
        (["SequenceBiasLogitsProcessor", "late"], ("RowMask", "SequenceBiasLogitsProcessor", "late", "VllmMask")),
    ],
    ids=str,
)
def test_an_imposed_processor_runs_after_those_declared_before_it(
    order: list[str], expected: tuple[str, ...] | None
) -> None:
    selection = chosen(
        Imposed(forced={"VllmMask": {}, "RowMask": {}}), logits_processors=[{"name": name} for name in order]
    )
    found = selection.order
    assert found == expected
    if found is None:
        return
    places = {each.name: place for place, each in enumerate(DECLARED)}
    for forced in ("RowMask", "VllmMask"):
        earlier = [name for name in found if places[name] < places[forced]]
        assert all(found.index(name) < found.index(forced) for name in earlier)


def test_nothing_imposed_changes_nothing() -> None:
    assert chosen(Imposed(), logits_processors_args=BIAS) == VALIDATOR.validate(
        SamplingParams(logits_processors_args=BIAS)
    )


GUMBEL, MIROSTAT = "GumbelWatermarkLogitsProcessor", "MirostatLogitsProcessor"
DRAWING = RequestArgsValidator(load_processors([GUMBEL, MIROSTAT]), 512)
KEY = {GUMBEL: {"gumbel_key": 3}}


def test_a_request_cannot_draw_beside_a_forced_processor_and_does_not_learn_its_name() -> None:
    for fields in ({"extra_args": {"mirostat_tau": 3.0}}, {"logits_processors": {MIROSTAT: {"mirostat_tau": 3.0}}}):
        with pytest.raises(RequestArgsError, match=f"{MIROSTAT} cannot be used: only one") as caught:
            DRAWING.validate_imposed(SamplingParams(**fields), Imposed(forced=KEY))
        assert GUMBEL not in str(caught.value)


def test_a_default_processor_that_draws_yields_to_the_requests_own() -> None:
    imposed = Imposed(default=KEY)
    assert DRAWING.validate_imposed(SamplingParams(), imposed).imposed == KEY
    for fields in ({"extra_args": {"mirostat_tau": 3.0}}, {"logits_processors": {MIROSTAT: {"mirostat_tau": 3.0}}}):
        assert DRAWING.validate_imposed(SamplingParams(**fields), imposed).imposed == {}
