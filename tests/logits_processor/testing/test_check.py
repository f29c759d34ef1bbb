"""`check_processor` names the fault of each wrong processor, and no other; right ones pass."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import support.hash_bias as hash_bias
import support.wrong as wrong
from support.hash_bias_torch import HuggingFace, torch_vllm_classes
from support.stand_ins import vllm_stand_ins
from support.tiny import tiny_fd_config

from fastdeploy_lp.logits_processor import BUILTIN, RequestArgsError
from fastdeploy_lp.logits_processor.testing import (
    CHECK_NAMES,
    CheckReport,
    ConformanceError,
    Outcome,
    ProcessorHarness,
    check_processor,
)
from fastdeploy_lp.logits_processor.testing.arguments import draw_arguments
from fastdeploy_lp.logits_processor.testing.loading import load

# Two sets are enough to detect a request that gets the state of another.
BOOSTS = [{"token_id": 3 + 7 * index, "boost": 1.0 + 0.75 * index} for index in range(2)]
HASH_BIAS = [{"hash_bias": [17 * index, 3.25 - index]} for index in range(3)]
NO_TIMES = ("speed",)
DRAWN = 2

# For builtins that go by the clock: a time that does not run out between two steps, or has run out before the first.
CHOSEN: dict[str, list[dict[str, Any]]] = {
    "MaxTimeLogitsProcessor": [{"max_time": 0.0}, {"max_time": 1e6}],
    "TriggerPhraseLogitsProcessor": [
        {"trigger_phrase": [5, 6], "trigger_on": [7], "trigger_after": True, "trigger_count": 2},
        {"trigger_phrase": [8], "trigger_on": [9]},
        {"trigger_phrase": [10, 11], "trigger_after_seconds": 1e6},
    ],
}

# What is wrong, the check that says so, and a part of what it says.
FAULTS: dict[str, tuple[Any, str, str]] = {
    "no method": (wrong.NoApply, "contract", "has no apply"),
    "constructor": (wrong.CannotBeBuilt, "contract", "OSError: no such file"),
    "claim of no kind": (wrong.NoBoolean, "contract", "returns 'no'"),
    "refusal": (wrong.RefusesWithKeyError, "arguments", "raise ValueError"),
    "exception": (wrong.Raises, "runs", "ZeroDivisionError"),
    "nothing": (wrong.ReturnsNothing, "result", "returned NoneType"),
    "shape": (wrong.ReturnsFewerColumns, "result", "1023"),
    "dtype": (wrong.ReturnsDoubles, "result", "float64"),
    "arguments": (wrong.PopsItsArguments, "share-inputs", "update_state changes share_inputs[logits_processors_args]"),
    "arrays": (wrong.WritesFlags, "share-inputs", "update_state writes to share_inputs: "),
    "only_with_args": (wrong.SaysOnlyWithArgs, "only-with-args", "pass no argument"),
    "random": (wrong.DrawsAtRandom, "deterministic", "its seed"),
    "rest": (wrong.RestsTooLong, "steps-at-rest", "steps_at_rest promises"),
    "apply": (wrong.AdvancesInApply, "apply-again", "advance state in update_state"),
    "slots for rows": (wrong.TakesSlotsForRows, "slot-number", "in slot 1"),
    "stopped slots": (wrong.CountsStoppedSlots, "stopped-slots", "stop flag False"),
    "rows": (wrong.LeaksAcrossRows, "row-isolation", "other rows of the batch"),
    "first sight": (wrong.ReadsAtFirstSight, "chunked-prefill", "in its prompt"),
    "slots": (wrong.LeavesStateInSlots, "slot-reuse", "an earlier one left"),
    "preemption": (wrong.CountsItsSteps, "preemption", "after a preemption"),
    "moves": (wrong.IgnoresMoves, "churn", "come and go"),
    "another's slot": (wrong.ActsOnTheNextSlot, "runs", "has no row in this step"),
    "no JSON": (wrong.EmitsASet, "runs", "not JSON serializable"),
    "actions": (wrong.FinishesInACrowd, "actions", "beside other requests"),
    "finished requests": (wrong.KeepsFinishedRequests, "finished-requests", "84 more of them, 84 more elements"),
    "callables": (wrong.CallableKeepsTokens, "finished-requests", "84 more of them"),
    "argmax": (wrong.LiesAboutArgmax, "argmax-invariance", "the most likely token was"),
    "NaN": (wrong.MakesNaN, "masked-rows", "makes NaN"),
    "nothing left": (wrong.LiesAboutValidRows, "keeps-rows-valid", "without one"),
    "another token": (wrong.ForcesAnother, "forced-tokens", "says in forced_tokens that it forces token"),
    "no token id": (wrong.ForcesNoToken, "forced-tokens", "token ids are 0 to"),
    "no tokens": (wrong.ForcesNothingKnown, "forced-tokens", "TypeError"),
    "state of forced_tokens": (wrong.AdvancesWhenAsked, "forced-tokens", "change no state in it"),
    "item": (wrong.WaitsForTheDevice, "host-sync", "Tensor.item in wrong.py, line"),
    "if": (wrong.WAITING_PLUGIN, "host-sync", "Tensor.__bool__ in wrong.py, line"),
    "reference": (wrong.KeepsTheLogits, "keeps-logits", "copy what it needs"),
}


@cache
def boosted(processor: Any) -> CheckReport:
    """The report on a processor with the arguments of `BOOSTS`, which several tests read."""
    return check_processor(processor, BOOSTS, skip=NO_TIMES)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_and_no_other(fault: str) -> None:
    processor, check, message = FAULTS[fault]
    report = check_processor(processor, BOOSTS, skip=NO_TIMES) if isinstance(processor, dict) else boosted(processor)
    assert report.of(Outcome.FAIL) == [check], str(report)
    assert report.of(Outcome.ADVICE) == []
    (finding,) = [each for each in report.findings if each.outcome is Outcome.FAIL]
    assert message in finding.message
    with pytest.raises(ConformanceError, match=check):
        report.require_passed()


def test_every_check_that_can_fail_has_a_fault_that_makes_it() -> None:
    """Some only give advice, and speed needs a processor that takes a second."""
    named = {check for _, check, _ in FAULTS.values()}
    advising = {"in-place", "effect", "rewind", "recovery", "every-token", "late-tokens"}
    assert named == set(CHECK_NAMES) - advising - {"speed"}


def without_fault(report: CheckReport) -> None:
    assert report.passed, str(report)
    assert report.of(Outcome.SKIPPED) == list(NO_TIMES)
    assert report.of(Outcome.ADVICE) == [], str(report)
    report.require_passed()


@pytest.mark.parametrize("processor", [wrong.Boosts, wrong.BoostsMoreEachStep])
def test_a_right_one_passes(processor: type) -> None:
    report = boosted(processor)
    without_fault(report)
    assert len(report.arguments) == len(BOOSTS)


def test_a_right_one_passes_with_drawn_arguments() -> None:
    report = check_processor(wrong.BoostsMoreEachStep, skip=NO_TIMES)
    without_fault(report)
    assert len(report.arguments) == 6


@pytest.mark.parametrize("name", BUILTIN)
def test_the_builtins_pass(name: str) -> None:
    """Most with drawn arguments, some of which may have no effect on a few tokens."""
    params = CHOSEN[name] if name in CHOSEN else drawn(name)
    report = check_processor(name, params, skip=NO_TIMES)
    assert report.passed, str(report)
    assert report.of(Outcome.SKIPPED) == list(NO_TIMES)
    assert "in-place" in report.of(Outcome.PASS)
    assert "arguments" in report.of(Outcome.PASS)


def drawn(name: str) -> list[dict[str, Any]]:
    """The first sets of arguments that `check_processor` draws by default."""
    harness = ProcessorHarness(name)

    def accepts(args: dict[str, Any]) -> bool:
        try:
            harness.select(args)
        except RequestArgsError:
            return False
        return True

    model = load(name).params_model
    assert model is not None
    return draw_arguments(model, DRAWN, vocab_size=harness.vocab_size, seed=0, accepts=accepts)


@pytest.mark.parametrize(
    "processor",
    [hash_bias.Vllm, hash_bias.Mrv2, hash_bias.RequestThree, "support.hash_bias:PLUGIN", HuggingFace],
    ids=str,
)
def test_right_ones_of_other_dialects_pass(processor: Any) -> None:
    report = check_processor(processor, HASH_BIAS, fd_config=tiny_fd_config(), skip=NO_TIMES)
    assert report.passed, str(report)


def test_processors_for_torch_pass_and_a_copy_is_advised_against() -> None:
    with vllm_stand_ins():
        in_place, copies = torch_vllm_classes()
        config = tiny_fd_config()
        assert check_processor(in_place, HASH_BIAS, fd_config=config, skip=NO_TIMES).of(Outcome.ADVICE) == []
        report = check_processor(copies, HASH_BIAS, fd_config=config, skip=NO_TIMES)
    assert report.passed, str(report)
    assert report.of(Outcome.ADVICE) == ["in-place"]


@pytest.mark.parametrize(
    ("processor", "checks"),
    [
        (wrong.ReturnsACopy, ["in-place"]),
        (wrong.RemembersWhoWasAway, ["recovery", "rewind"]),
        (wrong.RemembersTheLongestOutput, ["rewind"]),
        (wrong.NeedsANewToken, ["late-tokens"]),
    ],
)
def test_what_could_be_better_gives_advice_alone(processor: type, checks: list[str]) -> None:
    report = boosted(processor)
    assert (report.of(Outcome.FAIL), report.of(Outcome.ADVICE)) == ([], checks)


@pytest.mark.parametrize(
    ("processor", "expected"),
    [(wrong.Boosts, "depends on no token"), (wrong.BoostsMoreEachStep, "acts a token later where a server shows")],
)
def test_the_report_says_what_late_tokens_change(processor: type, expected: str) -> None:
    (found,) = (each for each in boosted(processor).findings if each.check == "late-tokens")
    assert found.outcome is Outcome.PASS
    assert found.message.startswith(expected)


def test_without_effect_and_without_arguments_there_is_advice() -> None:
    assert check_processor(wrong.Boosts, [], skip=NO_TIMES).of(Outcome.ADVICE) == ["arguments", "effect"]
    assert check_processor(wrong.IgnoresMoves, skip=NO_TIMES).of(Outcome.ADVICE) == ["arguments", "effect"]


def test_a_fault_takes_along_what_it_would_show_in() -> None:
    report = boosted(wrong.LeavesStateInSlots)
    skipped = {each.check: each.message for each in report.findings if each.outcome is Outcome.SKIPPED}
    assert skipped.pop("speed") == "as asked"
    assert skipped == {
        "preemption": "needs slot-reuse",
        "rewind": "needs preemption",
        "recovery": "needs preemption",
        "every-token": "needs preemption",
        "churn": "needs slot-reuse",
    }


def test_a_check_can_be_left_out() -> None:
    report = check_processor(wrong.WaitsForTheDevice, BOOSTS, skip=["host-sync", "speed"])
    assert report.passed
    assert report.of(Outcome.SKIPPED) == ["host-sync", "speed"]
    with pytest.raises(ValueError, match="skip: 'host_sync' is no check; checks are contract, "):
        check_processor(wrong.Boosts, skip=["host_sync"])


def test_arguments_that_it_refuses_are_an_error_of_the_caller() -> None:
    with pytest.raises(ValueError, match=r"logits_processors\.Boosts\.token_id"):
        check_processor(wrong.Boosts, [{"token_id": "no", "boost": 1}])


def test_the_vocabulary_has_the_tokens_of_the_arguments() -> None:
    report = check_processor("LogitBiasLogitsProcessor", [{"logit_bias": {"49151": -5.0}}], skip=NO_TIMES)
    without_fault(report)


@pytest.mark.parametrize("spec", ["no_such_module:Thing", "Nothing", "json:dumps"])
def test_what_is_no_processor_fails_the_contract(spec: str) -> None:
    report = check_processor(spec)
    assert report.of(Outcome.FAIL) == ["contract"]
    assert report.of(Outcome.SKIPPED) == list(CHECK_NAMES[1:])
    assert spec in str(report)
    assert [line.split()[:2] for line in str(report).splitlines()[1:-1]] == [["FAIL", "contract"]]
    assert str(report).endswith(f"0 passed, 1 failed, 0 with advice, {len(CHECK_NAMES) - 1} skipped; 0 steps ran")


def test_times_are_told_by_rows_and_vocabulary() -> None:
    report = check_processor(wrong.Boosts, BOOSTS)
    sizes = [(each.vocab_size, each.rows) for each in report.times]
    assert sizes == [(size, rows) for size in (49152, 151936) for rows in (1, 8, 32)]
    assert all(each.milliseconds > 0 for each in report.times)
    assert "rows     49152    151936" in str(report)


def test_the_report_is_readable_and_goes_through_json() -> None:
    report = boosted(wrong.WaitsForTheDevice)
    lines = str(report).splitlines()
    assert lines[0] == "WaitsForTheDevice (native, support.wrong:WaitsForTheDevice)"
    assert [line for line in lines if line.startswith("  FAIL     host-sync ")]
    assert [line for line in lines if line.startswith("  ")] == [line for line in lines if "FAIL" in line]
    assert lines[-1] == f"{len(CHECK_NAMES) - 2} passed, 1 failed, 0 with advice, 1 skipped; {report.steps} steps ran"
    assert report.steps > 100
    told = json.loads(json.dumps(report.as_dict()))
    assert (told["name"], told["passed"], told["arguments"]) == ("WaitsForTheDevice", False, BOOSTS)
    assert [each["check"] for each in told["findings"]] == list(CHECK_NAMES)
    assert {each["outcome"] for each in told["findings"]} == {"pass", "fail", "skipped"}
