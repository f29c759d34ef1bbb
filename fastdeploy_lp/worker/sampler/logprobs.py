"""Log probabilities of sampled tokens, kept on the device until the step's single read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.messages import TokenLogprobs
from fastdeploy_lp.model_executor.ops.row_ops import Draws, Int64s, RowLogprobs, RowOps
from fastdeploy_lp.platforms import to_device
from fastdeploy_lp.worker.sequence import Sequence as WorkerSequence


@dataclass(frozen=True)
class Wanted:
    """Rows with requested log probabilities, and the number of most likely tokens for each."""

    rows: Int64s
    counts: list[int]


NOTHING = Wanted(np.empty(0, np.int64), [])


class LogprobsCapture:
    """Logprobs of one step. `mode` is --logprobs-mode: of the model's raw logits or of the processed ones drawn from.

    Requests with logprobs are registered on entering a slot; requests without them cost nothing. `counts` has their
    numbers of most likely tokens by slot; a step calls `begin` while there are any.
    """

    def __init__(self, ops: RowOps, mode: str) -> None:
        self._ops = ops
        self._raw = mode.startswith("raw")
        self._normalize = mode.endswith("logprobs")
        self.counts: dict[int, int] = {}
        self._wanted = NOTHING
        self._kept: Tensor | None = None

    def enter(self, sequence: WorkerSequence) -> None:
        """Registers a sequence; does nothing if its request has no logprobs."""
        if sequence.params.logprobs is not None:
            self.counts[sequence.slot] = sequence.params.logprobs

    def leave(self, slot: int) -> None:
        """Clears a slot."""
        self.counts.pop(slot, None)

    def begin(self, logits: Tensor, slots: Int64s) -> None:
        """Keeps the raw logits [rows, vocab_size] of the rows that need them, before later stages change them."""
        self._wanted, self._kept = self._wanted_of(slots), None
        if self._raw and self._wanted.rows.size:
            self._kept = paddle.gather(logits, to_device(self._wanted.rows))

    def _wanted_of(self, slots: Int64s) -> Wanted:
        asking = [(row, self.counts[slot]) for row, slot in enumerate(slots.tolist()) if slot in self.counts]
        return Wanted(np.array([row for row, _ in asking], np.int64), [count for _, count in asking])

    @property
    def asked_for(self) -> bool:
        """True if any row of the step needs logprobs."""
        return bool(self._wanted.rows.size)

    @property
    def shows_what_is_drawn_from(self) -> bool:
        """True if any row needs logprobs of the processed logits."""
        return self.asked_for and not self._raw

    def compute(self, logits: Tensor, draws: Draws, tokens: Tensor) -> RowLogprobs:
        """Returns logprobs of the wanted rows' tokens; `tokens` [rows] were drawn from `logits`."""
        rows = to_device(self._wanted.rows)
        kept, self._kept = self._kept, None
        if kept is None:
            kept = self._ops.filtered(paddle.gather(logits, rows), draws.of(self._wanted.rows))
        count = max(self._wanted.counts)
        return self._ops.logprobs(kept, paddle.gather(tokens, rows), count, normalize=self._normalize)

    def unpack(self, values: NDArray[Any], tokens: NDArray[Any], ranks: NDArray[Any]) -> dict[int, TokenLogprobs]:
        """Returns logprobs by row from the host copies of `compute`'s result."""
        return {
            row: token_logprobs(count, *of_row)
            for row, count, *of_row in zip(
                self._wanted.rows.tolist(),
                self._wanted.counts,
                values.tolist(),
                tokens.tolist(),
                ranks.tolist(),
                strict=True,
            )
        }


def token_logprobs(count: int, values: list[float], tokens: list[float], rank: float) -> TokenLogprobs:
    """Returns the message of one position: the chosen token and the `count` most likely ones, without ruled-out ones.

    Of ruled-out tokens, with -inf, a GPU does not find the ids.
    """
    top = [(int(token), value) for token, value in zip(tokens[1 : count + 1], values[1:], strict=False)]
    top = [(token, value) for token, value in top if value > -math.inf]
    found = [(int(tokens[0]), values[0]), *top]
    return TokenLogprobs([token for token, _ in found], [value for _, value in found], int(rank))
