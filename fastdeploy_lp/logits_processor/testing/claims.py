"""Checks of a processor's claims, and that it leaves rows usable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.testing.harness import ProcessorHarness, Row
from fastdeploy_lp.logits_processor.testing.loading import Processor
from fastdeploy_lp.logits_processor.testing.report import ConformanceError
from fastdeploy_lp.logits_processor.testing.subject import LENGTH, Advice, Fault, Script, Subject, differs, require_same

if TYPE_CHECKING:
    from fastdeploy_lp.config import FDConfig


OUTPUT_LEN = 3


def check_argmax_invariance(
    processor: Processor, fd_config: FDConfig, args: Sequence[dict[str, Any]], *, trials: int = 20, seed: int = 0
) -> None:
    """Checks a processor's `is_argmax_invariant()` with random logits.

    processor: a SPEC, a class of any dialect or a plugin dict. args: named arguments, one dict for each row of the
    batch. trials: number of batches of logits [len(args), vocab_size] to try, normal ones and ones with many ties.

    Raises ConformanceError, with the names of processor, row and tokens, if a processor that declares itself
    argmax-invariant changes a row's most likely token. A processor that does not declare it passes.
    """
    if len(args) > fd_config.scheduler_config.max_num_seqs:
        raise ValueError(f"args: {len(args)} rows, but max_num_seqs is {fd_config.scheduler_config.max_num_seqs}")
    harness = ProcessorHarness(processor, fd_config=fd_config, seed=seed)
    if harness.entry.changes_argmax:
        return
    random = np.random.default_rng(seed)
    for index, each in enumerate(args):
        output = random.integers(0, harness.vocab_size, OUTPUT_LEN).tolist()
        harness.enter(f"request-{index}", each, output=output)
    harness.update()
    for trial in range(trials):
        before = trial_logits(random, trial, len(args), harness.vocab_size)
        require_same_argmax(harness.entry.name, before, harness.apply(harness.tensor(before)).numpy())


def trial_logits(random: np.random.Generator, trial: int, rows: int, vocab_size: int) -> NDArray[np.float32]:
    """Returns logits [rows, vocab_size], in turn with ties, as from a model, and nearly equal."""
    logits = random.normal(0.0, 0.01 if trial % 3 == 2 else 4.0, (rows, vocab_size)).astype(np.float32)
    return np.round(logits) if trial % 3 == 0 else logits


def require_same_argmax(name: str, before: NDArray[np.float32], after: NDArray[np.float32]) -> None:
    """Raises ConformanceError for a row of `after` [rows, vocab_size] whose winner is none of `before`."""
    # Equal logits share the first place and any of them may be drawn, so the later winner must be one of them.
    winners = after.argmax(axis=-1)
    rows = np.arange(len(before))
    for row in np.flatnonzero(before[rows, winners] < before.max(axis=-1)).tolist():
        raise ConformanceError(
            f"{name} says that it is argmax-invariant, but in row {row} the most likely token was "
            f"{int(before[row].argmax())} before and is {int(winners[row])} after it"
        )


def steps_at_rest(subject: Subject) -> None:
    """Checks that the updates that a chain leaves out would have changed no row."""
    expected = subject.alone
    if subject.count.at_rest:
        problem = "gives another row when it is updated at rest: steps_at_rest promises that its state holds"
        require_same(subject.rows_alone(subject.scripts, rests=False), expected, problem)


TRIALS = 20
MASKED = 0.9


def effect(subject: Subject) -> None:
    """Checks that at least one row changes, or that the processor acts on a request; raises Advice otherwise."""
    if not subject.acts_alone and all(
        differs(subject.untouched(*key), row) is None for key, row in subject.alone.items()
    ):
        raise Advice("changed no row of any request: give arguments that show what it does")


def argmax_invariance(subject: Subject) -> None:
    """Checks `is_argmax_invariant()` with random logits, some with ties."""
    harness = subject.harness()
    if harness.entry.changes_argmax:
        return
    for script in subject.scripts:
        _enter(harness, script, LENGTH)
    harness.update()
    random = np.random.default_rng(subject.seed)
    for trial in range(TRIALS):
        before = trial_logits(random, trial, len(subject.scripts), subject.vocab_size)
        try:
            require_same_argmax(harness.entry.name, before, harness.apply(harness.tensor(before)).numpy())
        except ConformanceError as error:
            raise Fault(f"{error}; return False from is_argmax_invariant()") from None


def only_with_args(subject: Subject) -> None:
    """Checks that `only_with_args` is true: rows of requests without its arguments do not change."""
    if not subject.harness().entry.processor.only_with_args:
        return
    stage = subject.stage()
    for script in subject.scripts:
        stage.enter(script)
    stage.run(LENGTH)
    for script in subject.scripts:
        for position in range(LENGTH if script.args is None else 0):
            before = subject.untouched(script.request_id, position)
            if differs(before, stage.rows[script.request_id, position]) is not None:
                raise Fault("says only_with_args, but changes rows of requests that pass no argument of its")


def masked_rows(subject: Subject) -> None:
    """Checks rows with mostly -inf, as left by another processor or a grammar that rules tokens out."""
    for before, after in _masked(subject):
        if np.isnan(after).any() and not np.isnan(before).any():
            token = int(np.flatnonzero(np.isnan(after))[0])
            raise Fault(f"makes NaN of a row in which tokens are -inf (at token {token}): keep -inf as it is")


def keeps_rows_valid(subject: Subject) -> None:
    """Checks that `keeps_rows_valid` is true: a row with a finite logit keeps one."""
    if not subject.harness().entry.processor.keeps_rows_valid:
        return
    for before, after in _masked(subject):
        if np.isfinite(before).any() and not np.isfinite(after).any():
            raise Fault("says keeps_rows_valid, but left a row that had a finite logit without one")


def forced_tokens(subject: Subject) -> None:
    """Checks that `forced_tokens` returns the most likely tokens of the next rows, and that it changes no row."""
    for given in subject.using:
        script = subject.script(given.request_id, given.args, length=2 * LENGTH)
        harness, unasked = subject.harness(), subject.harness()
        slot = _enter(harness, script, 0)
        _enter(unasked, script, 0)
        forced: list[int] = []
        for position, scripted in enumerate(script.tokens):
            tokens = {script.request_id: forced[0] if forced else scripted}
            row, expected = (each.step(tokens=tokens)[script.request_id] for each in (harness, unasked))
            where = f"{script.request_id}, step {position + 1}"
            if differs(expected, row) is not None:
                raise Fault(f"gives another row after a call of forced_tokens: change no state in it ({where})")
            likeliest = int(row.argmax())
            if forced and likeliest != forced[0]:
                raise Fault(f"says in forced_tokens that it forces token {forced[0]}, not {likeliest} ({where})")
            forced = harness.forced_tokens(slot, len(script.tokens)) or forced[1:]


def _masked(subject: Subject) -> list[tuple[Row, Row]]:
    """Returns rows before and after one step of each request alone, with few or with most tokens ruled out."""
    pairs = []
    for script in subject.scripts:
        for share in (0.1, MASKED):
            harness = subject.harness()
            _enter(harness, script, 2)
            row = harness.random_row(script.request_id, 2)
            chosen = np.random.default_rng(subject.seed).random(row.shape) < share
            row[chosen & (row < row.max())] = -np.inf
            pairs.append((row, harness.step({script.request_id: row})[script.request_id]))
    return pairs


def _enter(harness: ProcessorHarness, script: Script, generated: int) -> int:
    output = list(script.tokens[:generated])
    return harness.enter(script.request_id, script.args, prompt=script.prompt, output=output, params=script.params)
