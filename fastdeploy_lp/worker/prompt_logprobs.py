"""Log probabilities of prompts, gathered chunk by chunk until the first output token takes them along."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.messages import PackedLogprobs
from fastdeploy_lp.model_executor.ops.row_ops import RowLogprobs, RowOps
from fastdeploy_lp.platforms import to_device
from fastdeploy_lp.worker.sequence import Sequence as WorkerSequence

# Logits of so many bytes at a time: a long chunk's would not fit beside the model.
PIECE_BYTES = 32 << 20


@dataclass
class Pending:
    """A prompt [tokens] of which the logprobs of positions 1 to `done` are in `parts`."""

    token_ids: Sequence[int]
    count: int
    done: int = 0
    parts: list[RowLogprobs] = field(default_factory=list)


class PromptLogprobs:
    """Follows requests that ask for `prompt_logprobs` through slots; everyone else costs nothing.

    The model's own logits are meant in every --logprobs-mode: nothing is sampled from a prompt.
    """

    def __init__(self, ops: RowOps, mode: str, vocab_size: int, compute_logits: Callable[[Tensor], Tensor]) -> None:
        self._ops = ops
        self._normalize = mode.endswith("logprobs")
        self._piece_rows = max(1, PIECE_BYTES // (4 * vocab_size))
        self._compute_logits = compute_logits
        self._by_slot: dict[int, Pending] = {}

    def enter(self, sequence: WorkerSequence) -> None:
        """A sequence takes a slot; one that has output already was preempted, and its prompt's logprobs are sent."""
        count = sequence.params.prompt_logprobs
        if count is not None and not sequence.output_token_ids:
            self._by_slot[sequence.slot] = Pending(sequence.prompt_token_ids, count)

    def leave(self, slot: int) -> None:
        """A slot is empty."""
        self._by_slot.pop(slot, None)

    @property
    def idle(self) -> bool:
        """Whether nobody waits for logprobs."""
        return not self._by_slot

    def wants(self, slot: int) -> bool:
        """Whether the hidden states of every token of the slot's next chunk are needed."""
        pending = self._by_slot.get(slot)
        return pending is not None and pending.done < len(pending.token_ids) - 1

    def take(self, slot: int, hidden: Tensor) -> None:
        """Hidden states [tokens, hidden_size] of the slot's next chunk, every token of it."""
        pending = self._by_slot[slot]
        follow = pending.token_ids[pending.done + 1 : pending.done + 1 + hidden.shape[0]]
        for begin in range(0, len(follow), self._piece_rows):
            targets = to_device(np.array(follow[begin : begin + self._piece_rows], np.int64))
            logits = self._compute_logits(hidden[begin : begin + targets.shape[0]])
            found = self._ops.logprobs(logits, targets, pending.count, normalize=self._normalize)
            pending.parts.append(found)
        pending.done += len(follow)

    def finish(self, slots: Iterable[int]) -> FinishedPrompts:
        """Those of these slots, which sample their first token now, that wait for their prompts' logprobs."""
        return FinishedPrompts({slot: self._by_slot.pop(slot) for slot in slots if slot in self._by_slot})


@dataclass(frozen=True)
class FinishedPrompts:
    """Prompts whose logprobs go out with this step's tokens."""

    by_slot: dict[int, Pending]

    @property
    def tensors(self) -> list[Tensor]:
        """What the step's one read has to bring to the host."""
        parts = [part for pending in self.by_slot.values() for part in pending.parts]
        return [tensor for part in parts for tensor in (part.values, part.tokens, part.ranks)]

    def unpack(self, arrays: Iterable[NDArray[Any]]) -> dict[int, PackedLogprobs]:
        """By slot, a position for each prompt token but the first; `arrays` are what was read of `tensors`."""
        arrays = iter(arrays)
        found: dict[int, PackedLogprobs] = {}
        for slot, pending in self.by_slot.items():
            width = pending.count + 1
            parts = [(next(arrays), next(arrays), next(arrays)) for _ in pending.parts]
            found[slot] = PackedLogprobs(
                width,
                _packed([tokens[:, :width] for _, tokens, _ in parts], "<i4"),
                _packed([values[:, :width] for values, _, _ in parts], "<f4"),
                _packed([ranks for _, _, ranks in parts], "<i4"),
            )
        return found


def _packed(parts: list[NDArray[Any]], dtype: str) -> bytes:
    return b"".join(part.astype(dtype).tobytes() for part in parts)
