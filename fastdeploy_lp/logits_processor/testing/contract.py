"""Checks of the contract itself: the processor's constructor, arguments, inputs and results."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from fastdeploy_lp.logits_processor.errors import RequestArgsError
from fastdeploy_lp.logits_processor.processor_args import ReadOnlyError
from fastdeploy_lp.logits_processor.testing.harness import ProcessorHarness, StepError
from fastdeploy_lp.logits_processor.testing.state import is_array
from fastdeploy_lp.logits_processor.testing.subject import LENGTH, Advice, Fault, Subject
from fastdeploy_lp.logits_processor.vllm_v1 import WrongResultError

STRANGE: tuple[Any, ...] = ("?", -1, 2**62, 1e30, [], [[]], {}, None, True)


def contract(subject: Subject) -> None:
    """Checks that the processor can be built and that `is_argmax_invariant()` returns a bool."""
    processor = subject.harness().entry.processor
    claim = processor.is_argmax_invariant()
    if not isinstance(claim, bool):
        raise Fault(f"is_argmax_invariant() returns {claim!r}; it must return True or False")


def arguments(subject: Subject) -> None:
    """Checks that strange arguments are refused with ValueError; raises Advice if valid ones are unknown."""
    model = subject.declared.params_model
    if model is not None:
        names = sorted(subject.declared.argument_names)
    else:
        names = sorted({name for args in subject.arguments for name in args})
    harness = subject.harness()
    for name in names:
        for value in STRANGE:
            _ask(harness, {name: value})
    if model is None and subject.declared.dialect.name == "native":
        raise Advice("has no Params: arguments reach it unchecked, and clients cannot see what it takes")
    if not subject.arguments:
        raise Advice("ran without arguments: nothing is known of them, or none could be drawn; give some")


def _ask(harness: ProcessorHarness, args: dict[str, Any]) -> None:
    try:
        harness.select(args)
    except RequestArgsError as error:
        cause = error.__cause__
        if cause is not None:
            what = f"{type(cause).__name__}: {cause}"
            raise Fault(
                f"refuses the arguments {args} with {what}; raise ValueError and say what is allowed"
            ) from error


def runs(subject: Subject) -> None:
    """Checks that requests with valid arguments do not make it raise."""
    for script in subject.scripts:
        try:
            subject.rows_alone([script])
        except StepError as error:
            if not isinstance(error.cause, WrongResultError) and not _is_refused_write(error):
                raise Fault(f"{error}, for arguments that were accepted: {script.args}") from error


def result(subject: Subject) -> None:
    """Checks that `apply` returns logits of the shape and type that it got."""
    for script in subject.scripts:
        try:
            subject.rows_alone([script])
        except StepError as error:
            if isinstance(error.cause, WrongResultError):
                raise Fault(f"apply {error.cause}") from error


def share_inputs(subject: Subject) -> None:
    """Checks that `update_state` and `apply` leave the slot arrays unchanged."""
    stage = subject.stage()
    for script in subject.scripts:
        stage.enter(script)
    harness = stage.harness
    for _ in range(LENGTH // 2):
        harness.slots.set_active(harness.active)
        harness.entry.view.bind(harness.slots, harness.stop_flags)
        before = {name: _copy(value) for name, value in harness.entry.view.items()}
        for phase in ("update_state", "apply"):
            try:
                if phase == "update_state":
                    harness.update()
                else:
                    harness.apply(harness.tensor(np.zeros((len(harness.active), subject.vocab_size))))
            except StepError as error:
                if not _is_refused_write(error):
                    raise
                raise Fault(f"{phase} writes to share_inputs: {error.cause}; work on a copy") from error
            changed = [name for name, value in before.items() if not _same(value, harness.entry.view[name])]
            if changed:
                fields = ", ".join(changed)
                raise Fault(f"{phase} changes share_inputs[{fields}], which belongs to everybody: work on a copy")
        for slot in harness.active:
            harness.slots.append_token(slot, 3)


def _is_refused_write(error: StepError) -> bool:
    """True if the cause is a write to a list, a tensor or an array of `share_inputs`."""
    refused = isinstance(error.cause, ValueError) and "read-only" in str(error.cause)
    return refused or isinstance(error.cause, ReadOnlyError)


def _copy(value: Any) -> Any:
    return np.array(value) if is_array(value) else copy.deepcopy(value)


def _same(before: Any, now: Any) -> bool:
    if isinstance(before, np.ndarray):
        return np.array_equal(before, np.array(now))
    return bool(_plain(before) == _plain(now))


def _plain(value: Any) -> Any:
    """Returns a value whose parts compare by content."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(each) for each in value]
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    return dict(value) if isinstance(value, Mapping) else value
