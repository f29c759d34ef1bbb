"""The next pass of sequences that generate, which the device runs before the host knows their tokens.

So the device computes while the host reads tokens, ends sequences, schedules, and runs `update_state`. Chain and
sampler follow in the next step, with every token known: no processor sees anything later than without this.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import paddle
from paddle import Tensor

from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
from fastdeploy_lp.model_executor.models.registry import ComputesAhead
from fastdeploy_lp.platforms import to_device
from fastdeploy_lp.worker.block_manager import BlockTables
from fastdeploy_lp.worker.sequence import ScheduledChunk
from fastdeploy_lp.worker.sequence import Sequence as WorkerSequence

UNKNOWN = np.zeros(1, np.int64)


class PassAhead:
    """Hidden states of the tokens that a step has just drawn, by slot.

    A sequence that leaves its slot before the next step leaves its row unused. Its last keys and values are in a block
    that it alone held; the next holder's writes to this block are queued later.
    """

    def __init__(self, model: ComputesAhead, block_tables: BlockTables) -> None:
        self._model = model
        self._block_tables = block_tables
        self._rows: dict[int, int] = {}
        self._hidden: Tensor | None = None

    def enter(self, sequence: WorkerSequence) -> None:
        """See `SlotFollower`; a sequence enters without a row."""

    def leave(self, slot: int) -> None:
        """Forgets the row of a sequence that has ended, or was preempted or rewound."""
        self._rows.pop(slot, None)

    def begin(self, chunks: Sequence[ScheduledChunk], tokens: Tensor) -> None:
        """Queues the pass after the draw of `tokens` int64 [rows]; row r is that of chunk r."""
        rows = [row for row, chunk in enumerate(chunks) if chunk.goes_ahead]
        going = [chunks[row] for row in rows]
        if len(going) < len(chunks):
            tokens = paddle.gather(tokens, to_device(np.array(rows)))
        parts = [
            SequenceChunk(UNKNOWN, chunk.sequence.num_tokens, self._block_tables.row(chunk.sequence)) for chunk in going
        ]
        # A row without a token has -1, which is no token's id; its request fails.
        self._hidden = self._model.forward_ahead(parts, paddle.clip(tokens, min=0))
        self._rows = {chunk.sequence.slot: row for row, chunk in enumerate(going)}

    def take(self, chunks: Sequence[ScheduledChunk]) -> Tensor | None:
        """Returns the hidden states [chunks, hidden_size] if the pass had all of these chunks; forgets them."""
        hidden, rows = self._hidden, self._rows
        self._hidden, self._rows = None, {}
        if hidden is None or any(chunk.num_tokens > 1 or chunk.draft for chunk in chunks):
            return None
        found = [rows.get(chunk.sequence.slot) for chunk in chunks]
        if None in found:
            return None
        return hidden if len(found) == hidden.shape[0] else paddle.gather(hidden, to_device(np.array(found)))
