"""Edits of a row that a module returns from its step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.wasm.errors import ModuleFault

EDITS_WORDS = 12
MAX_EMITS = 64
MAX_TEXT_BYTES = 1 << 17


class ModuleMemory(Protocol):
    """Memory of a module; its methods raise ModuleFault for places outside it."""

    def integers(self, place: int, count: int) -> tuple[int, ...]:
        """Returns uint32 [count]."""

    def words(self, place: int, count: int) -> NDArray[np.uint32]:
        """Returns a view of uint32 [count]."""

    def floats(self, place: int, count: int) -> NDArray[np.float32]:
        """Returns a view of float32 [count]."""

    def text(self, place: int, num_bytes: int) -> str:
        """Returns a text."""


@dataclass(slots=True)
class StepEdits:
    """Edits in the order in which they are made, as views of the module's memory, and its actions.

    row: logits that replace the row, float32 [vocab_size]. tokens, values: uint32 and float32 [n], added to the row.
    allowed: uint32 [words], a bit for each token, the lowest first; tokens without a bit get -inf. finish, emits,
    rewind (number of tokens, and banned ones): see `Actions`.
    """

    row: NDArray[np.float32] | None = None
    tokens: NDArray[np.uint32] | None = None
    values: NDArray[np.float32] | None = None
    allowed: NDArray[np.uint32] | None = None
    finish: str | None = None
    emits: tuple[Any, ...] = ()
    rewind: tuple[int, tuple[int, ...]] | None = None

    @property
    def acts(self) -> bool:
        """True if it has actions."""
        return self.finish is not None or bool(self.emits) or self.rewind is not None

    def require_valid_biases(self, vocab_size: int) -> None:
        """Raises ModuleFault for a token beyond the vocabulary, and for a bias of NaN or positive infinity."""
        if self.tokens is None or self.values is None:
            return
        if (self.tokens >= vocab_size).any():
            token = int(self.tokens[self.tokens >= vocab_size][0])
            raise ModuleFault(f"a bias on token {token}; the vocabulary has {vocab_size} tokens")
        if not (self.values < np.inf).all():
            raise ModuleFault("a bias of NaN or positive infinity; finite ones and negative infinity are allowed")


def read_edits(memory: ModuleMemory, place: int, vocab_size: int) -> StepEdits:
    """Returns the edits of the struct `lp_edits` at this place; raises ModuleFault for an invalid one."""
    count, tokens, values, allowed, row, finish, length, emits, num_emits, *rewind = memory.integers(place, EDITS_WORDS)
    edits = StepEdits()
    if count:
        if count > vocab_size:
            raise ModuleFault(f"{count} biases; the vocabulary has {vocab_size} tokens")
        edits.tokens, edits.values = memory.words(tokens, count), memory.floats(values, count)
    if allowed:
        edits.allowed = memory.words(allowed, -(-vocab_size // 32))
    if row:
        edits.row = memory.floats(row, vocab_size)
    if finish:
        edits.finish = _text(memory, finish, length)
    if num_emits:
        if num_emits > MAX_EMITS:
            raise ModuleFault(f"{num_emits} values to emit in one step; at most {MAX_EMITS} are allowed")
        texts = memory.integers(emits, 2 * num_emits)
        edits.emits = tuple(_value(_text(memory, *pair)) for pair in zip(texts[::2], texts[1::2], strict=True))
    taken_back, banned, num_banned = rewind
    if taken_back:
        if num_banned > vocab_size:
            raise ModuleFault(f"{num_banned} banned tokens; the vocabulary has {vocab_size}")
        edits.rewind = taken_back, memory.integers(banned, num_banned)
    return edits


def _text(memory: ModuleMemory, place: int, length: int) -> str:
    if length > MAX_TEXT_BYTES:
        raise ModuleFault(f"a text of {length} bytes; at most {MAX_TEXT_BYTES} are allowed")
    return memory.text(place, length)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModuleFault(f"a value to emit that is no JSON: {error}") from None


@dataclass(frozen=True, slots=True)
class Biases:
    """Biases of several rows, all [n]: rows and tokens int64, values float32."""

    rows: NDArray[np.int64]
    tokens: NDArray[np.int64]
    values: NDArray[np.float32]

    @classmethod
    def of(cls, edits: Sequence[tuple[int, StepEdits]]) -> Biases | None:
        """Returns the biases among edits that are given with their rows, None for none."""
        rows, tokens, values = [], [], []
        for row, each in edits:
            if each.tokens is not None and each.values is not None:
                rows.append(row)
                tokens.append(each.tokens)
                values.append(each.values)
        if not rows:
            return None
        of_rows = np.repeat(np.array(rows, np.int64), [len(each) for each in tokens])
        return cls(of_rows, np.concatenate(tokens).astype(np.int64), np.concatenate(values))

    def are_valid(self, vocab_size: int) -> bool:
        """Returns False for a token beyond the vocabulary, and for a bias of NaN or positive infinity."""
        # NaN is the maximum of values that contain it.
        return bool(self.tokens.max() < vocab_size) and bool(self.values.max() < np.inf)


def without_faults(
    edits: list[tuple[int, StepEdits]], vocab_size: int
) -> tuple[list[tuple[int, StepEdits]], Biases | None, dict[int, Exception]]:
    """Returns the edits of the rows without faults, the biases of these edits, and the faults by row.

    The biases of all rows are checked at once: a call of numpy takes as long for one row as for many.
    """
    biases = Biases.of(edits)
    failed: dict[int, Exception] = {}
    if biases is not None and not biases.are_valid(vocab_size):
        for row, each in edits:
            try:
                each.require_valid_biases(vocab_size)
            except ModuleFault as error:
                failed[row] = error
        edits = [(row, each) for row, each in edits if row not in failed]
        biases = Biases.of(edits)
    return edits, biases, failed
