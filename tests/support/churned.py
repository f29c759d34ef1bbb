"""A processor under requests that come, wait, are preempted and go, each row held against a reference of its own."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import paddle
from numpy.typing import NDArray

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessor, ProcessorArgs
from fastdeploy_lp.logits_processor.share_inputs import ProcessorView, ShareInputs
from support.sequences import sequence
from support.tiny import tiny_fd_config

VOCAB_SIZE, SLOTS, MAX_MODEL_LEN = 16, 4, 64
EOS = 1
MAX_OUTPUT = 24

Row = NDArray[np.float32]


class Reference(Protocol):
    """What plain numpy makes of one request's row; `output` are its tokens so far. Asked once a step."""

    def __call__(self, logits: Row, output: list[int]) -> Row: ...


MakeReference = Callable[[dict[str, Any], list[int]], Reference]
"""From a request's arguments and prompt, when it is to get its first token."""


def small_config(vocab_size: int = VOCAB_SIZE) -> FDConfig:
    """A few slots and a vocabulary in which everything happens soon."""
    config = tiny_fd_config(max_num_seqs=SLOTS, max_model_len=MAX_MODEL_LEN, eos_token_ids=(EOS,))
    return dataclasses.replace(config, model_config=dataclasses.replace(config.model_config, vocab_size=vocab_size))


class Slots:
    """Slot arrays and a processor's view of them, as the worker and the chain fill them."""

    def __init__(self, cls: Callable[[FDConfig], LogitsProcessor], *, in_chain: bool = True) -> None:
        self.processor = cls(small_config())
        self.share_inputs = ShareInputs(SLOTS, MAX_MODEL_LEN)
        self.view = ProcessorView(SLOTS)
        self.in_chain = in_chain
        self.held: dict[int, Any] = {}

    def enter(self, slot: int, prompt: Sequence[int], args: dict[str, Any], output: Sequence[int] = ()) -> None:
        """A request takes a slot."""
        made = sequence(prompt, slot=slot, output=output, max_model_len=MAX_MODEL_LEN, logits_processors_args=args)
        self.take(slot, made)

    def take(self, slot: int, made: Any) -> None:
        """A request, new or preempted, takes a slot."""
        made.slot = slot
        self.share_inputs.assign(made)
        args = ProcessorArgs(made.selection.flat)
        self.view.set_args(slot, args)
        if args:
            self.view.using.add(slot)
        self.held[slot] = made

    def leave(self, slot: int) -> Any:
        """A slot is empty again; gives what was in it."""
        self.share_inputs.clear(slot)
        self.view.set_args(slot, ProcessorArgs())
        self.view.using.discard(slot)
        return self.held.pop(slot)

    def update(self, active: Sequence[int] | None = None) -> None:
        """A step begins in which these slots (all that are held) yield a token."""
        self.share_inputs.set_active(np.array(sorted(self.held if active is None else active), np.int64))
        self.view.bind(self.share_inputs, self.share_inputs["stop_flags"])
        self.processor.update_state(self.view if self.in_chain else self.share_inputs)

    def apply(self, logits: NDArray[np.float32], dtype: str = "float32") -> NDArray[np.float32]:
        """What becomes of logits [rows, vocab_size], worked on as `dtype`."""
        given = paddle.to_tensor(logits, dtype=dtype)
        result = self.processor.apply(given)
        assert result is given
        return np.array(result.astype("float32").numpy())

    def sample(self, tokens: dict[int, int]) -> None:
        """A token for each slot."""
        self.share_inputs.append_tokens(np.array([*tokens], np.int64), np.array([*tokens.values()], np.int64))
        for slot, token in tokens.items():
            self.held[slot].append(token)

    def step(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """One step of all slots that are held."""
        self.update()
        return self.apply(logits)

    def forces(self, seed: int = 0) -> list[int | None]:
        """For each row, the token that a step leaves, None for a row that is not touched."""
        logits = np.random.default_rng(seed).standard_normal((len(self.held), VOCAB_SIZE)).astype(np.float32)
        found: list[int | None] = []
        for before, after in zip(logits, self.step(logits), strict=True):
            left = np.flatnonzero(after > -np.inf)
            assert len(left) == 1 or np.array_equal(before, after)
            found.append(int(left[0]) if len(left) == 1 else None)
        return found


@dataclass
class Wanted:
    """A request that is to be run: `args` is empty for one that does not use the processor."""

    prompt: list[int]
    args: dict[str, Any]
    reference: Reference | None = None
    sequence: Any = None
    position: int = 0
    rows: list[tuple[Row, Row]] = field(default_factory=list)


class Churn:
    """Runs requests to their ends in random company; `seed` decides about everything, so that a failure repeats.

    A request's logits and draws depend on its own number and position alone. `dtype` bfloat16 goes the way of a device,
    since numpy has no such type. Raises AssertionError for a row that is not as the reference makes it.
    """

    def __init__(
        self,
        cls: Callable[[FDConfig], LogitsProcessor],
        requests: Sequence[tuple[list[int], dict[str, Any]]],
        make_reference: MakeReference,
        *,
        seed: int,
        dtype: str = "float32",
        tick: Callable[[], object] = lambda: None,
    ) -> None:
        self._slots = Slots(cls, in_chain=bool(seed % 3))
        self._waiting = [Wanted(prompt, args) for prompt, args in requests]
        self._numbers = {id(each): number for number, each in enumerate(self._waiting)}
        self._running: dict[int, Wanted] = {}
        self._make_reference, self._dtype, self._tick, self._seed = make_reference, dtype, tick, seed
        self._random = random.Random(seed)

    def run(self) -> None:
        """Until every request has ended."""
        while self._waiting or self._running:
            self._tick()
            self._move()
            active = [slot for slot in sorted(self._running) if self._random.random() < 0.85]
            if active:
                self._step(active)

    def _move(self) -> None:
        """Requests enter free slots, and now and then one is preempted."""
        for slot in [slot for slot in self._running if self._random.random() < 0.08]:
            self._slots.leave(slot)
            self._waiting.insert(0, self._running.pop(slot))
        free = [slot for slot in range(SLOTS) if slot not in self._running]
        self._random.shuffle(free)
        while self._waiting and free and self._random.random() < 0.7:
            slot, wanted = free.pop(), self._waiting.pop(0)
            if wanted.sequence is None:
                made = sequence(wanted.prompt, max_model_len=MAX_MODEL_LEN, logits_processors_args=wanted.args)
                made.stop_token_ids, made.max_tokens = frozenset({EOS}), MAX_OUTPUT
                wanted.sequence = made
            self._slots.take(slot, wanted.sequence)
            self._running[slot] = wanted

    def _step(self, active: list[int]) -> None:
        wanted = [self._running[slot] for slot in active]
        before = np.stack([self._logits(each) for each in wanted])
        self._slots.update(active)
        after = self._slots.apply(before, self._dtype)
        if self._random.random() < 0.2:
            # Another processor failed: the same once more.
            np.testing.assert_array_equal(self._slots.apply(before, self._dtype), after)
        for each, given, made in zip(wanted, before, after, strict=True):
            self._check(each, given, made)
        tokens = {slot: self._draw(each, row) for slot, each, row in zip(active, wanted, after, strict=True)}
        self._slots.sample(tokens)
        for slot in active:
            if self._running[slot].sequence.finish_reason is not None:
                self._slots.leave(slot)
                del self._running[slot]

    def _check(self, wanted: Wanted, before: Row, after: Row) -> None:
        expected = before
        if wanted.args:
            if wanted.reference is None:
                wanted.reference = self._make_reference(wanted.args, wanted.prompt)
            expected = wanted.reference(before.copy(), list(wanted.sequence.output_token_ids))
        if self._dtype == "float32":
            np.testing.assert_array_equal(after, expected)
        else:
            np.testing.assert_allclose(after, expected, rtol=0.02, atol=0.02)

    def _logits(self, wanted: Wanted) -> Row:
        logits = 2 * self._own_random(wanted).standard_normal(VOCAB_SIZE)
        # Values that bfloat16 has, too, so that both have the same greatest one.
        return np.asarray(paddle.to_tensor(logits, dtype="bfloat16").astype("float32").numpy())

    def _draw(self, wanted: Wanted, row: Row) -> int:
        """The most likely token, or now and then any that is left."""
        random_source = self._own_random(wanted)
        if random_source.random() < 0.7:
            return int(row.argmax())
        return int(random_source.choice(np.flatnonzero(row > -np.inf)))

    def _own_random(self, wanted: Wanted) -> np.random.Generator:
        number = self._numbers[id(wanted)]
        position = len(wanted.sequence.output_token_ids)
        return np.random.default_rng([self._seed, number, position])


def only(row: Row, token: int) -> Row:
    """A row that leaves this token alone."""
    row[:] = -np.inf
    row[token] = 0.0
    return row


def crowds(args: Any, *, min_prompt: int = 1) -> Any:
    """A hypothesis strategy for what `Churn` takes: prompts with drawn arguments, or with none."""
    from hypothesis import strategies as st

    tokens = st.integers(2, VOCAB_SIZE - 1)
    prompts = st.lists(tokens, min_size=min_prompt, max_size=8)
    return st.lists(st.tuples(prompts, st.just({}) | args), min_size=1, max_size=7)


DTYPES = ["float32", "bfloat16"]
