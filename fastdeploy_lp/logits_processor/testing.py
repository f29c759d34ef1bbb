"""Checks of a logits processor without a model or a server, for its author."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.config import spec_of
from fastdeploy_lp.logits_processor.chain_entry import ChainEntry
from fastdeploy_lp.logits_processor.registry import load_processors
from fastdeploy_lp.logits_processor.selection import Selection
from fastdeploy_lp.logits_processor.stats import ProcessorStats
from fastdeploy_lp.sampling_params import SamplingParams

if TYPE_CHECKING:
    from fastdeploy_lp.config import FDConfig

PROMPT_LEN, OUTPUT_LEN = 5, 3


class ConformanceError(AssertionError):
    """A processor does not do what it says of itself."""


def check_argmax_invariance(
    processor: str | type, fd_config: FDConfig, args: Sequence[dict[str, Any]], *, trials: int = 20, seed: int = 0
) -> None:
    """Hold a processor's `is_argmax_invariant()` against what it does to random logits.

    processor: a SPEC or a class of any dialect. args: named arguments, one dict for each row of the batch. trials:
    how many batches of logits [len(args), vocab_size] are tried, normal ones and ones with many ties.

    Raises ConformanceError, naming the processor, the row and the tokens, when a processor that declares itself
    argmax-invariant changes a row's most likely token. One that does not declare it passes.
    """
    entry = _entry(processor, fd_config, len(args))
    if entry.changes_argmax:
        return
    for slot, each in enumerate(args):
        entry.enter(slot, Selection(named={entry.name: each}))
    random = np.random.default_rng(seed)
    share_inputs = _slots(random, fd_config, args)
    entry.update_state(share_inputs, share_inputs["stop_flags"])
    for trial in range(trials):
        logits = random.normal(0.0, 4.0, (len(args), fd_config.model_config.vocab_size)).astype(np.float32)
        _require_same_argmax(entry, logits if trial % 2 else np.round(logits))


def _entry(processor: str | type, fd_config: FDConfig, rows: int) -> ChainEntry:
    if rows > fd_config.scheduler_config.max_num_seqs:
        raise ValueError(f"args: {rows} rows, but max_num_seqs is {fd_config.scheduler_config.max_num_seqs}")
    spec = spec_of(processor)
    declared = next(
        each
        for each in load_processors([spec], {} if isinstance(processor, str) else {spec: processor})
        if each.spec == spec
    )
    return ChainEntry(declared, fd_config, ProcessorStats(declared.name))


def _require_same_argmax(entry: ChainEntry, before: NDArray[np.float32]) -> None:
    import paddle

    after = entry.apply(paddle.to_tensor(before)).numpy()
    # Equal logits share the first place, and any of them may be drawn: the winner afterwards has to be one of them.
    winners = after.argmax(axis=-1)
    rows = np.arange(len(before))
    for row in np.flatnonzero(before[rows, winners] < before.max(axis=-1)).tolist():
        raise ConformanceError(
            f"{entry.name} says that it is argmax-invariant, but in row {row} the most likely token was "
            f"{int(before[row].argmax())} before and is {int(winners[row])} after it"
        )


def _slots(random: np.random.Generator, fd_config: FDConfig, args: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Slot arrays as the worker has them, every one active, with random prompts and outputs."""
    import paddle

    slots, length = fd_config.scheduler_config.max_num_seqs, fd_config.model_config.max_model_len
    stop_flags = np.ones((slots, 1), bool)
    stop_flags[: len(args)] = False
    token_ids = np.full((slots, length), -1, np.int64)
    tokens = random.integers(0, fd_config.model_config.vocab_size, (slots, PROMPT_LEN + OUTPUT_LEN))
    token_ids[:, : tokens.shape[1]] = tokens
    return {
        "stop_flags": stop_flags,
        "req_ids": [f"request-{slot}" for slot in range(slots)],
        "sampling_params": [SamplingParams() for _ in range(slots)],
        "prompt_lens": np.full((slots, 1), PROMPT_LEN),
        "step_idx": np.full((slots, 1), OUTPUT_LEN),
        "prompt_token_ids": tokens[:, :PROMPT_LEN].tolist(),
        "output_token_ids": tokens[:, PROMPT_LEN:].tolist(),
        "token_ids_all": paddle.to_tensor(token_ids),
        "token_ids_all_cpu": token_ids,
        "next_tokens": paddle.to_tensor(tokens[:, -1:]),
        "next_tokens_cpu": tokens[:, -1:],
    }
