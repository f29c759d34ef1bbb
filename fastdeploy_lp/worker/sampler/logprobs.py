"""Log probabilities of sampled tokens, kept on the device until the step's one read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.messages import TokenLogprobs
from fastdeploy_lp.model_executor.ops.row_ops import Draws, Int64s, RowLogprobs, RowOps
from fastdeploy_lp.platforms import to_device
from fastdeploy_lp.sampling_params import SamplingParams


@dataclass(frozen=True)
class Wanted:
    """Rows whose requests ask for log probabilities, and how many of the most likely tokens each wants."""

    rows: Int64s
    counts: list[int]

    @classmethod
    def of(cls, params: Sequence[SamplingParams]) -> Wanted:
        """The rows among those of these requests."""
        asking = [(row, each.logprobs) for row, each in enumerate(params) if each.logprobs is not None]
        return cls(np.array([row for row, _ in asking], np.int64), [count for _, count in asking])


class LogprobsCapture:
    """Logprobs of one step. `mode` is --logprobs-mode: of the model's own logits or of those that are drawn from."""

    def __init__(self, ops: RowOps, mode: str) -> None:
        self._ops = ops
        self._raw = mode.startswith("raw")
        self._normalize = mode.endswith("logprobs")
        self._wanted = Wanted(np.empty(0, np.int64), [])
        self._kept: Tensor | None = None

    def begin(self, params: Sequence[SamplingParams], logits: Tensor) -> None:
        """Keep the raw logits [rows, vocab_size] of the rows that need them, before anything changes them."""
        self._wanted, self._kept = Wanted.of(params), None
        if self._raw and self._wanted.rows.size:
            self._kept = paddle.gather(logits, to_device(self._wanted.rows))

    @property
    def asked_for(self) -> bool:
        """Whether any row of the step wants logprobs."""
        return bool(self._wanted.rows.size)

    @property
    def shows_what_is_drawn_from(self) -> bool:
        """Whether any row wants logprobs of other than the model's own logits."""
        return self.asked_for and not self._raw

    def compute(self, logits: Tensor, draws: Draws, tokens: Tensor) -> RowLogprobs:
        """Logprobs of the wanted rows' tokens; `logits` is what `tokens` [rows] were drawn from."""
        rows = to_device(self._wanted.rows)
        kept, self._kept = self._kept, None
        if kept is None:
            kept = self._ops.filtered(paddle.gather(logits, rows), draws.of(self._wanted.rows))
        count = max(self._wanted.counts)
        return self._ops.logprobs(kept, paddle.gather(tokens, rows), count, normalize=self._normalize)

    def unpack(self, values: NDArray[Any], tokens: NDArray[Any], ranks: NDArray[Any]) -> dict[int, TokenLogprobs]:
        """By row, what the host read of `compute`'s result."""
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
    """One position's message, of the chosen token and the `count` most likely ones."""
    return TokenLogprobs([int(token) for token in tokens[: count + 1]], values[: count + 1], int(rank))
