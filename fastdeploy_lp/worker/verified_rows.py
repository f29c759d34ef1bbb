"""The model's logits for a step's draft tokens, from which each round of verification takes its rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from paddle import Tensor

from fastdeploy_lp.logits_processor.chain.chain import take_rows
from fastdeploy_lp.worker.scheduled import ScheduledChunk


class VerifiedRows:
    """Logits [rows, vocab_size]: of each chunk the row of its last token, then the rows of its draft tokens."""

    def __init__(self, logits: Tensor, chunks: Sequence[ScheduledChunk]) -> None:
        self._logits = logits
        starts = accumulate((1 + len(chunk.draft) for chunk in chunks), initial=0)
        self._first = {chunk.sequence.slot: start for chunk, start in zip(chunks, starts, strict=False)}

    def logits(self, chunks: Sequence[ScheduledChunk]) -> Tensor:
        """Returns a copy of the chunks' next rows, [chunks, vocab_size]: those after their accepted draft tokens."""
        rows = [self._first[chunk.sequence.slot] + chunk.accepted for chunk in chunks]
        return take_rows(self._logits, np.array(rows, np.int64))
