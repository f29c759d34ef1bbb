"""Histories of requests that come, go and generate, to hold a builtin processor against a plain-numpy reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessor, ProcessorArgs, Selection
from fastdeploy_lp.logits_processor.share_inputs import ProcessorView, ShareInputs
from fastdeploy_lp.worker.sequence import Sequence
from support.sequences import sequence
from support.tiny import tiny_fd_config

SLOTS, VOCAB_SIZE, MAX_MODEL_LEN = 6, 37, 64
EOS = (3, 5)
ONE = 2.0**32

Reference = Callable[[np.ndarray, Sequence], np.ndarray]
"""A row of logits [VOCAB_SIZE] and the request that it is for, to what the processor should make of it."""

token = st.integers(0, VOCAB_SIZE - 1)
# Of few tokens, so that texts repeat themselves.
texts = st.lists(st.integers(0, 4) | token, min_size=1, max_size=12)


def builtin_config() -> FDConfig:
    config = tiny_fd_config(max_num_seqs=SLOTS, max_model_len=MAX_MODEL_LEN, eos_token_ids=EOS)
    return dataclasses.replace(config, model_config=dataclasses.replace(config.model_config, vocab_size=VOCAB_SIZE))


class Slots:
    """A processor and the slots it reads, filled and emptied as the worker does it.

    With `in_chain` False the processor reads bare slot arrays, as code that drives it without a chain shows them.
    """

    def __init__(self, cls: type[LogitsProcessor], *, in_chain: bool = True) -> None:
        self.processor = cls(builtin_config())
        self.share_inputs = ShareInputs(SLOTS, MAX_MODEL_LEN)
        self.view = ProcessorView(SLOTS)
        self.in_chain = in_chain
        self.held: dict[int, Sequence] = {}

    def enter(self, slot: int, entering: Sequence) -> None:
        if slot in self.held:
            self.leave(slot)
        entering.slot = slot
        self.share_inputs.assign(entering)
        self.view.set_args(slot, entering.selection.args_for("any"))
        if entering.selection.flat:
            self.view.using.add(slot)
        self.held[slot] = entering

    def leave(self, slot: int) -> Sequence:
        self.share_inputs.clear(slot)
        self.view.set_args(slot, ProcessorArgs())
        self.view.using.discard(slot)
        return self.held.pop(slot)

    def process(self, active: list[int], logits: np.ndarray) -> np.ndarray:
        """One step's work on the rows of these slots."""
        self.share_inputs.set_active(np.array(active, np.int64))
        self.view.bind(self.share_inputs, self.share_inputs["stop_flags"])
        self.processor.update_state(self.view if self.in_chain else self.share_inputs)
        tensor = paddle.to_tensor(logits)
        assert self.processor.apply(tensor) is tensor
        # When another processor of the chain fails, logits come again, and so does the call.
        again = self.processor.apply(paddle.to_tensor(logits)).numpy()
        np.testing.assert_array_equal(tensor.numpy(), again)
        return tensor.numpy()

    def append(self, slot: int, generated: int) -> None:
        self.share_inputs.append_tokens(np.array([slot]), np.array([generated]))
        self.held[slot].output_token_ids.append(generated)


@dataclass(frozen=True)
class Entering:
    """A request that takes a slot."""

    args: dict[str, Any]
    prompt: list[int]
    seed: int
    stop_token_ids: list[int]


@dataclass(frozen=True)
class History:
    """What happens to slots before each of several steps: a request enters, or the one there leaves or is preempted."""

    seed: int
    in_chain: bool
    steps: list[list[tuple[int, Entering | str]]]


def histories(arguments: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[History]:
    entering = st.builds(
        Entering, arguments | st.just({}), texts, st.integers(0, 2**64 - 1), st.lists(token, max_size=2)
    )
    event = st.tuples(st.integers(0, SLOTS - 1), entering | st.sampled_from(["leave", "preempt"]))
    steps = st.lists(st.lists(event, max_size=4), min_size=1, max_size=10)
    return st.builds(History, st.integers(0, 2**32 - 1), st.booleans(), steps)


def random_row(rng: np.random.Generator) -> np.ndarray:
    """Wide and narrow rows, rows with equal logits, with banned tokens, and broken ones."""
    row = rng.standard_normal(VOCAB_SIZE).astype(np.float32) * np.float32(rng.choice([0.3, 2.0, 9.0]))
    kind = rng.integers(8)
    if kind in (0, 1):
        row = np.round(row)
    if kind in (1, 2):
        row[rng.choice(VOCAB_SIZE, 20, replace=False)] = -np.inf
    if kind == 3 and rng.integers(4) == 0:
        row[rng.integers(VOCAB_SIZE)] = np.nan
    return row


def replay(cls: type[LogitsProcessor], reference: Reference, history: History) -> None:
    slots, rng = Slots(cls, in_chain=history.in_chain), np.random.default_rng(history.seed)
    for step in history.steps:
        for slot, event in step:
            happen(slots, slot, event, rng)
        active = [slot for slot in sorted(slots.held) if rng.integers(5)]
        logits = np.stack([random_row(rng) for _ in active] or [np.empty(VOCAB_SIZE, np.float32)])[: len(active)]
        result = slots.process(active, logits)
        for row, slot in enumerate(active):
            expected = logits[row].copy()
            if slots.held[slot].selection.flat:
                expected = reference(expected, slots.held[slot])
            assert_same_row(result[row], expected, exact=not slots.held[slot].selection.flat)
        for slot in active:
            slots.append(slot, int(rng.integers(5)))


def happen(slots: Slots, slot: int, event: Entering | str, rng: np.random.Generator) -> None:
    if isinstance(event, Entering):
        made = sequence(event.prompt, seed=event.seed, stop_token_ids=event.stop_token_ids)
        made.selection = Selection(flat=event.args)
        slots.enter(slot, made)
    elif slot in slots.held:
        left = slots.leave(slot)
        if event == "preempt":
            slots.enter(int(rng.integers(SLOTS)), left)


def assert_same_row(actual: np.ndarray, expected: np.ndarray, *, exact: bool) -> None:
    assert actual.dtype == np.float32
    if exact:
        np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))
        return
    np.testing.assert_array_equal(np.isneginf(actual), np.isneginf(expected))
    np.testing.assert_allclose(actual, expected, rtol=2e-6)


def check_builtin(
    cls: type[LogitsProcessor],
    reference: Reference,
    arguments: st.SearchStrategy[dict[str, Any]],
    *,
    examples: int = 40,
) -> None:
    """Hold the processor against the reference in drawn histories: each row has to be as its own request wants it."""

    @settings(max_examples=examples)
    @given(histories(arguments))
    def check(history: History) -> None:
        replay(cls, reference, history)

    check()


def usable(row: np.ndarray) -> bool:
    """Whether a row has no NaN, and a finite logit."""
    return bool(np.isfinite(row.max()))


def weights(row: np.ndarray) -> np.ndarray:
    """What tokens weigh at temperature 1, float64 whole numbers, so that sums are exact."""
    return np.floor(np.exp(np.maximum(row.astype(np.float64) - float(row.max()), -700.0)) * ONE)


def probabilities(row: np.ndarray) -> np.ndarray:
    return np.exp(row.astype(np.float64) - float(row.max())) / (weights(row).sum() / ONE)


def without(row: np.ndarray, banned: Any) -> np.ndarray:
    """The row with some tokens, by ids or a mask, at -inf."""
    row[banned] = -np.inf
    return row
