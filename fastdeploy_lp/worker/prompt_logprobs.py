"""Log probabilities of prompts, collected chunk by chunk and sent with the first output token."""

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

# Bytes of logits computed at a time: the logits of a long chunk would not fit beside the model.
PIECE_BYTES = 32 << 20


@dataclass
class Pending:
    """A prompt [tokens]; `parts` holds the logprobs of positions 1 to `done`."""

    token_ids: Sequence[int]
    count: int
    done: int = 0
    parts: list[RowLogprobs] = field(default_factory=list)


class PromptLogprobs:
    """Tracks requests with `prompt_logprobs` in slots, a `PromptFollower`; other requests cost nothing.

    Uses the model's raw logits in every --logprobs-mode, since nothing is sampled from a prompt.
    """

    def __init__(self, ops: RowOps, mode: str, vocab_size: int, compute_logits: Callable[[Tensor], Tensor]) -> None:
        self._ops = ops
        self._normalize = mode.endswith("logprobs")
        self._piece_rows = max(1, PIECE_BYTES // (4 * vocab_size))
        self._compute_logits = compute_logits
        self._by_slot: dict[int, Pending] = {}

    def enter(self, sequence: WorkerSequence) -> None:
        """Registers a sequence; one that has had output enters again after its prompt's logprobs were computed."""
        count = sequence.params.prompt_logprobs
        if count is not None and sequence.needs_prompt_logprobs:
            self._by_slot[sequence.slot] = Pending(sequence.prompt_token_ids, count)

    def leave(self, slot: int) -> None:
        """Clears a slot."""
        self._by_slot.pop(slot, None)

    @property
    def idle(self) -> bool:
        """True if no request waits for prompt logprobs."""
        return not self._by_slot

    def needs_each_token(self, slot: int) -> bool:  # noqa: ARG002
        """Returns False: prompts only are followed."""
        return False

    def wants(self, slot: int) -> bool:
        """See `PromptFollower`; False once only the prompt's last token is left."""
        pending = self._by_slot.get(slot)
        return pending is not None and pending.done < len(pending.token_ids) - 1

    def wants_every_row(self, slot: int) -> bool:
        """See `PromptFollower`."""
        return self.wants(slot)

    def take(self, slot: int, hidden: Tensor) -> None:
        """See `PromptFollower`."""
        pending = self._by_slot[slot]
        follow = pending.token_ids[pending.done + 1 : pending.done + 1 + hidden.shape[0]]
        for begin in range(0, len(follow), self._piece_rows):
            targets = to_device(np.array(follow[begin : begin + self._piece_rows], np.int64))
            logits = self._compute_logits(hidden[begin : begin + targets.shape[0]])
            found = self._ops.logprobs(logits, targets, pending.count, normalize=self._normalize)
            pending.parts.append(found)
        pending.done += len(follow)

    def finish(self, slots: Iterable[int]) -> FinishedPrompts:
        """Removes and returns the prompts with logprobs in these slots, which sample their first token now."""
        return FinishedPrompts({slot: self._by_slot.pop(slot) for slot in slots if slot in self._by_slot})


@dataclass(frozen=True)
class FinishedPrompts:
    """Prompts whose logprobs are sent with this step's tokens."""

    by_slot: dict[int, Pending]

    @property
    def tensors(self) -> list[Tensor]:
        """Tensors to copy to the host in the step's single read."""
        parts = [part for pending in self.by_slot.values() for part in pending.parts]
        return [tensor for part in parts for tensor in (part.values, part.tokens, part.ranks)]

    def unpack(self, arrays: Iterable[NDArray[Any]]) -> dict[int, PackedLogprobs]:
        """Returns by slot a position for each prompt token but the first; `arrays` are host copies of `tensors`."""
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
