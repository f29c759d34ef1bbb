"""`check_processor`: runs all checks of a processor, in an order in which each fault is reported once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastdeploy_lp.logits_processor.errors import LogitsProcessorSpecError, RequestArgsError
from fastdeploy_lp.logits_processor.testing import behaviour, claims, contract, tensors
from fastdeploy_lp.logits_processor.testing.arguments import draw_arguments, integers_in
from fastdeploy_lp.logits_processor.testing.harness import ProcessorHarness, StepError
from fastdeploy_lp.logits_processor.testing.loading import (
    VOCAB_SIZE,
    Processor,
    load,
    standalone_model,
)
from fastdeploy_lp.logits_processor.testing.report import CheckReport, Finding, Outcome
from fastdeploy_lp.logits_processor.testing.subject import PLAIN, SLOTS, Advice, Fault, Subject

if TYPE_CHECKING:
    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.logits_processor.declared import DeclaredProcessor

SETS_OF_ARGUMENTS = SLOTS - PLAIN
# Upper limit of vocabularies: integers from here on do not count as token ids.
LARGEST_VOCABULARY = 1 << 18


@dataclass(frozen=True)
class Check:
    """A check. needs: earlier checks without which this one would report the same faults again.

    run: raises Fault or Advice; may return what has passed, in place of `passed`.
    """

    name: str
    run: Callable[[Subject], str | None]
    passed: str
    needs: tuple[str, ...] = ()


_SOUND = ("runs", "result", "share-inputs")
_ALIKE = (*_SOUND, "only-with-args", "deterministic")
_SAME = (*_ALIKE, "steps-at-rest")
_SINGLE = ("slot-number", "stopped-slots", "slot-reuse", "preemption", "recovery")

CHECKS = (
    Check("contract", contract.contract, "loads, is built, has its methods"),
    Check("arguments", contract.arguments, "what it refuses, it refuses with ValueError", ("contract",)),
    Check("runs", contract.runs, "raises for no valid arguments", ("contract",)),
    Check("result", contract.result, "returns a tensor of the same shape and dtype", ("runs",)),
    Check("share-inputs", contract.share_inputs, "leaves share_inputs as they are", ("runs", "result")),
    Check("effect", claims.effect, "changes rows of requests that use it", _SOUND),
    Check("only-with-args", claims.only_with_args, "only_with_args is true to what it does", _SOUND),
    Check("deterministic", behaviour.deterministic, "gives the same rows for the same steps", _SOUND),
    Check("steps-at-rest", claims.steps_at_rest, "steps_at_rest is true to what it does", _ALIKE),
    Check("apply-again", behaviour.apply_again, "apply may run twice in a step", _SAME),
    Check("slot-number", behaviour.slot_number, "gives the same row in every slot", _SAME),
    Check("stopped-slots", behaviour.stopped_slots, "looks at no slot that is stopped", (*_SAME, "slot-number")),
    Check("row-isolation", behaviour.row_isolation, "a row depends on no other row", _SAME),
    Check(
        "chunked-prefill",
        behaviour.chunked_prefill,
        "a request may wait in its slot",
        (*_SAME, "slot-number", "stopped-slots", "row-isolation"),
    ),
    Check("slot-reuse", behaviour.slot_reuse, "forgets who was in a slot before", (*_SAME, "slot-number")),
    Check("preemption", behaviour.preemption, "goes on after a preemption", (*_SAME, "slot-number", "slot-reuse")),
    Check("recovery", behaviour.recovery, "built anew, goes on with running requests", (*_SAME, "preemption")),
    Check(
        "every-token",
        behaviour.every_token,
        "an instance of a request needs no call for its earlier tokens",
        (*_SAME, "preemption"),
    ),
    Check(
        "churn",
        behaviour.churn,
        "gives the same rows while requests come and go",
        (*_SAME, *_SINGLE, "row-isolation", "chunked-prefill"),
    ),
    Check("rewind", behaviour.rewind, "goes on after tokens were taken back", (*_SAME, "preemption", "churn")),
    Check("late-tokens", behaviour.late_tokens, "runs where a server shows tokens a step late", _SAME),
    Check("actions", behaviour.actions, "acts on each request by itself", _SAME),
    Check("finished-requests", tensors.finished_requests, "keeps nothing of requests that have ended", _SOUND),
    Check("argmax-invariance", claims.argmax_invariance, "is_argmax_invariant() is true to what it does", _SOUND),
    Check("masked-rows", claims.masked_rows, "makes no NaN of -inf", _SOUND),
    Check(
        "keeps-rows-valid",
        claims.keeps_rows_valid,
        "keeps_rows_valid is true to what it does",
        (*_SOUND, "masked-rows"),
    ),
    Check("forced-tokens", claims.forced_tokens, "forced_tokens() is true to what it does", _SAME),
    Check("host-sync", tensors.host_sync, "reads no tensor back to the host", _SOUND),
    Check("in-place", tensors.in_place, "changes the logits in place", _SOUND),
    Check("keeps-logits", tensors.keeps_logits, "keeps no logits for later", _SOUND),
    Check("speed", tensors.speed, "stays within a server's time budget", _SOUND),
)
CHECK_NAMES = tuple(check.name for check in CHECKS)


def check_processor(
    processor: Processor,
    params: Sequence[Mapping[str, Any]] | None = None,
    *,
    fd_config: FDConfig | None = None,
    seed: int = 0,
    skip: Collection[str] = (),
) -> CheckReport:
    """Verifies a processor against the contract, without a model or a server.

    processor: a SPEC, a class of any dialect or a plugin dict. params: sets of arguments that requests pass to it, of
    which the first 6 are used; drawn from the JSON schema of its `Params` by default. fd_config: configuration for its
    constructor, if it needs a real model's; by default without a model and with a tokenizer of bytes. seed: seed of
    logits, tokens and drawn arguments. skip: names of checks to leave out, from `CHECK_NAMES`.

    Raises ValueError for params that the processor refuses and for an unknown name in `skip`. The report contains all
    other faults; `check_processor(…).require_passed()` raises an error for them.
    """
    unknown = [name for name in skip if name not in CHECK_NAMES]
    if unknown:
        raise ValueError(f"skip: {unknown[0]!r} is no check; checks are {', '.join(CHECK_NAMES)}")
    try:
        declared = load(processor)
    except LogitsProcessorSpecError as error:
        return _not_loaded(str(processor), str(processor), "unknown", str(error))
    with _configured(fd_config, params or ()) as config:
        try:
            ProcessorHarness(declared, fd_config=config)
        except RuntimeError as error:
            return _not_loaded(declared.name, declared.spec, declared.dialect.name, str(error))
        subject = Subject(declared, config, _arguments(declared, config, params, seed), seed)
        findings = tuple(_run_all(subject, skip))
    arguments = tuple(subject.arguments)
    times, steps = tuple(subject.times), subject.count.steps
    return CheckReport(declared.name, declared.spec, declared.dialect.name, arguments, findings, times, steps)


def _run_all(subject: Subject, skip: Collection[str]) -> Iterator[Finding]:
    outcomes: dict[str, Outcome] = {}
    for check in CHECKS:
        needed = [name for name in check.needs if name not in skip]
        failed = [name for name in needed if outcomes[name] in (Outcome.FAIL, Outcome.SKIPPED)]
        if check.name in skip:
            finding = Finding(check.name, Outcome.SKIPPED, "as asked")
        elif failed:
            finding = Finding(check.name, Outcome.SKIPPED, f"needs {failed[0]}")
        else:
            finding = _finding(check, subject)
        outcomes[check.name] = finding.outcome
        yield finding


def _finding(check: Check, subject: Subject) -> Finding:
    try:
        passed = check.run(subject)
    except Advice as advice:
        return Finding(check.name, Outcome.ADVICE, str(advice))
    except (Fault, StepError) as fault:
        return Finding(check.name, Outcome.FAIL, str(fault))
    return Finding(check.name, Outcome.PASS, passed or check.passed)


def _not_loaded(name: str, spec: str, dialect: str, reason: str) -> CheckReport:
    skipped = [Finding(each, Outcome.SKIPPED, "needs contract") for each in CHECK_NAMES[1:]]
    return CheckReport(name, spec, dialect, (), (Finding("contract", Outcome.FAIL, reason), *skipped))


@contextmanager
def _configured(fd_config: FDConfig | None, params: Sequence[Mapping[str, Any]]) -> Iterator[FDConfig]:
    """Yields the given configuration, or one whose vocabulary contains every token id of `params`."""
    if fd_config is not None:
        yield fd_config
        return
    largest = max((each for args in params for each in integers_in(args) if each < LARGEST_VOCABULARY), default=0)
    with standalone_model(max(VOCAB_SIZE, largest + 1)) as config:
        yield config


def _arguments(
    declared: DeclaredProcessor, config: FDConfig, params: Sequence[Mapping[str, Any]] | None, seed: int
) -> list[dict[str, Any]]:
    harness = ProcessorHarness(declared, fd_config=config)

    def accepts(args: Mapping[str, Any]) -> bool:
        try:
            harness.select(args)
        except RequestArgsError:
            return False
        return True

    if params is not None:
        for args in params:
            harness.select(args)
        return [dict(args) for args in params][:SETS_OF_ARGUMENTS]
    if declared.params_model is None:
        return []
    size = config.model_config.vocab_size
    return draw_arguments(declared.params_model, SETS_OF_ARGUMENTS, vocab_size=size, seed=seed, accepts=accepts)
