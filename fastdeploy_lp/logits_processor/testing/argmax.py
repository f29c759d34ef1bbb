"""Checks the claim of argmax invariance with random logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.testing.harness import ProcessorHarness
from fastdeploy_lp.logits_processor.testing.loading import Processor
from fastdeploy_lp.logits_processor.testing.report import ConformanceError

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
