"""No request gets round a processor that the operator declared mandatory."""

from __future__ import annotations

import logging
from random import Random
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel
from support.masks import CHAIN, MANDATORY, PluginMask, banned
from support.random_selections import random_selection
from support.tiny import tiny_fd_config

from fastdeploy_lp.entrypoints.declare import declare_engine
from fastdeploy_lp.logits_processor import (
    LogitsProcessorChain,
    RequestArgsError,
    RequestArgsValidator,
    Selection,
    load_processors,
)
from fastdeploy_lp.logits_processor.testing.harness import Occupant, Slots
from fastdeploy_lp.request.sampling_params import SamplingParams
from fastdeploy_lp.startup.engine_args import EngineArgs

SELECTIONS, SEED = 4_000, 20261122
VOCAB_SIZE, SLOTS = 512, 64
BIAS = "LogitBiasLogitsProcessor"
DECLARED = load_processors(CHAIN, mandatory=MANDATORY)
CHECKS = RequestArgsValidator(DECLARED, VOCAB_SIZE)


def choose(**fields: Any) -> Selection:
    return CHECKS.validate(SamplingParams(**fields))


def refusal(**fields: Any) -> RequestArgsError:
    with pytest.raises(RequestArgsError) as caught:
        choose(**fields)
    return caught.value


def listed(*names: str) -> list[dict[str, Any]]:
    return [{"name": name} for name in names]


def params_of(fields: dict[str, Any]) -> SamplingParams:
    """As the routes make them of a body."""
    return SamplingParams(**{{"vllm_xargs": "extra_args"}.get(name, name): value for name, value in fields.items()})


class Rows:
    """A chain, and the rows of requests that run together."""

    def __init__(self) -> None:
        self._config = tiny_fd_config(max_num_seqs=SLOTS)
        self._chain = LogitsProcessorChain(DECLARED, self._config)

    def after(self, selections: list[Selection]) -> np.ndarray:
        """The logits [requests, vocab_size] of one step, 0 before it."""
        import paddle

        slots = Slots(SLOTS, 8)
        for slot, selection in enumerate(selections):
            slots.assign(Occupant(slot, f"r{slot}", [1, 2], [], selection))
            self._chain.enter(slot, selection)
        slots.set_active(list(range(len(selections))))
        self._chain.update_state(slots)

        def logits() -> Any:
            return paddle.zeros([len(selections), VOCAB_SIZE])

        result = self._chain.apply(logits(), all_greedy=True, recompute=logits)
        assert not self._chain.failures
        for slot in range(len(selections)):
            self._chain.leave(slot)
        rows: np.ndarray = result.numpy()
        return rows


def test_no_selection_gets_round_a_mandatory_processor() -> None:
    rng = Random(SEED)
    accepted: list[Selection] = []
    refused: list[RequestArgsError] = []
    for _ in range(SELECTIONS):
        fields = random_selection(rng, VOCAB_SIZE)
        try:
            accepted.append(CHECKS.validate(params_of(fields)))
        except RequestArgsError as error:
            refused.append(error)
    assert all(error.path for error in refused)
    # Neither side is what is left over.
    assert min(len(accepted), len(refused)) > SELECTIONS // 5
    rows, bans = Rows(), banned(VOCAB_SIZE)
    # Requests of one order share a group of the chain, which is quicker than one each.
    accepted.sort(key=lambda selection: str((selection.order, sorted(selection.named or ()), selection.shadow)))
    for begin in range(0, len(accepted), SLOTS):
        selections = accepted[begin : begin + SLOTS]
        after = rows.after(selections)
        got_round = np.flatnonzero((after[:, bans] != -np.inf).any(axis=1))
        assert not got_round.size, [selections[row] for row in got_round]
        # What is not banned is still there.
        assert np.isfinite(after.max(axis=1)).all()


@pytest.mark.parametrize(
    "fields",
    [
        {"logits_processors": {}},
        {"logits_processors": []},
        {"logits_processors": {BIAS: {"logit_bias": {"2": 100.0}}}},
        {"logits_processors": listed("late", "SequenceBiasLogitsProcessor")},
        {"logits_processors_args": {"logit_bias": {"2": 100.0}}},
        {"logits_processors_shadow": [BIAS, "late"]},
        {},
    ],
    ids=str,
)
def test_what_leaves_them_out_does_not(fields: dict[str, Any]) -> None:
    selection = choose(**fields)
    assert (Rows().after([selection])[0][banned(VOCAB_SIZE)] == -np.inf).all()
    assert [each.name for each in DECLARED if each.mandatory and each.is_used_by(selection)] == list(MANDATORY)


@pytest.mark.parametrize(
    ("requested", "order"),
    [
        (["LogitBiasLogitsProcessor"], None),
        (["early", "Unbans"], ("early", "Unbans", *MANDATORY)),
        (["early", "Unbans", "RowMask"], ("early", "Unbans", *MANDATORY)),
        (["early", "Unbans", "late"], ("early", "Unbans", "RowMask", "plugin_mask", "late", "VllmMask")),
        (["early", "Unbans", "VllmMask"], ("early", "Unbans", *MANDATORY)),
        (["plugin_mask", "VllmMask"], None),
        ([], None),
    ],
    ids=str,
)
def test_an_order_holds_around_them(requested: list[str], order: tuple[str, ...] | None) -> None:
    assert choose(logits_processors=listed(*requested)).order == order


@pytest.mark.parametrize(
    ("requested", "path", "passed"),
    [
        (["RowMask", "early"], "logits_processors.1", "RowMask"),
        ([BIAS, "early"], "logits_processors.1", "RowMask"),
        (["early", "late", BIAS, "Unbans"], "logits_processors.2", "plugin_mask"),
        (["early", "VllmMask", "RowMask"], "logits_processors.2", "RowMask"),
        (["late", "RowMask"], "logits_processors.1", "RowMask"),
    ],
    ids=str,
)
def test_an_order_across_one_is_refused_with_one_that_is_allowed(requested: list[str], path: str, passed: str) -> None:
    error = refusal(logits_processors=listed(*requested))
    assert error.path == path
    assert f"{passed} is mandatory" in error.reason
    allowed = error.reason.rpartition(" is ")[2].split(", ")
    assert set(allowed) == {*requested, *MANDATORY}
    assert choose(logits_processors=listed(*allowed)).shadow == ()


def test_one_in_shadow_has_no_side_to_keep() -> None:
    chosen = [{"name": "late", "shadow": True}, {"name": "early"}]
    assert choose(logits_processors=chosen) == Selection(named={"late": {}, "early": {}}, shadow=("late",))


@pytest.mark.parametrize("name", MANDATORY)
def test_none_goes_into_shadow(name: str) -> None:
    in_entry = refusal(logits_processors=[{"name": "early"}, {"name": name, "shadow": True}])
    assert (in_entry.path, name in in_entry.reason) == ("logits_processors.1.shadow", True)
    for chosen in (None, {}, {name: {}}, {"early": {}}):
        in_field = refusal(logits_processors=chosen, logits_processors_shadow=["early", name] if not chosen else [name])
        assert in_field.path in ("logits_processors_shadow.1", "logits_processors_shadow.0")
        assert name in in_field.reason or chosen == {}


def test_its_own_params_are_the_clients_to_set() -> None:
    selection = choose(logits_processors={"plugin_mask": {"also": 7}, "early": {}})
    assert Rows().after([selection])[0][7] == -np.inf
    assert refusal(logits_processors={"plugin_mask": {"step": 1}}).path == "logits_processors.plugin_mask.step"


def test_flat_arguments_are_not_for_one_that_is_reached_by_name() -> None:
    selection = choose(logits_processors_args={"logit_bias": {"7": 1.0}})
    assert selection.args_for("plugin_mask") == {}
    assert selection.args_for("late") == {"logit_bias": {7: 1.0}}
    assert refusal(extra_args={"also": 7}).path == "extra_args.also"


def test_only_a_mandatory_one_is_used_by_every_request() -> None:
    processors = {processor.name: processor for processor in DECLARED}
    named, flat = choose(logits_processors={"late": {}}), choose()
    assert [name for name, each in processors.items() if each.is_used_by(named)] == [*MANDATORY[:2], "late", "VllmMask"]
    assert [name for name, each in processors.items() if each.is_meant_for(named)] == ["plugin_mask", "late"]
    assert [name for name, each in processors.items() if each.is_used_by(flat)] == list(MANDATORY)
    assert [name for name, each in processors.items() if each.is_meant_for(flat)] == ["plugin_mask"]


class NeedyParameters(BaseModel):
    words: list[int]


needy = {"logits_processor_class": PluginMask, "parameters_model": NeedyParameters}


def declare(*specs: str, **options: Any) -> None:
    declare_engine(EngineArgs(model="no-such-model", logits_processors=list(specs), **options), progress=False)


@pytest.mark.parametrize(
    ("specs", "mandatory", "message"),
    [
        ([BIAS], ["RowMask"], rf"mandatory: 'RowMask' is not declared; declared are {BIAS}"),
        (["needy=test_mandatory:needy"], ["needy"], r"mandatory: needy cannot be made .*\(words: Field required\)"),
        (
            ["transformers:TemperatureLogitsWarper"],
            ["TemperatureLogitsWarper"],
            r"mandatory: TemperatureLogitsWarper cannot be made .*\(temperature: Field required\)",
        ),
    ],
)
def test_what_cannot_be_mandatory_is_told_at_the_start(
    specs: list[str], mandatory: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(__file__.rpartition("/")[0])
    with pytest.raises(ValueError, match=message):
        declare(*specs, mandatory=mandatory)
    with pytest.raises(ValueError, match=r"mandatory: RowMask is in shadow"):
        declare("support.masks:RowMask", mandatory=["RowMask"], shadow=["RowMask"])


def test_one_that_works_with_arguments_alone_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(ValueError, match="no-such-model"):
        declare(BIAS, "support.masks:RowMask", mandatory=[BIAS, "RowMask"])
    assert [record.getMessage() for record in caplog.records] == [
        f"mandatory: {BIAS} changes only requests that pass it arguments; any other request is served without it"
    ]
