"""Tells vLLM-style processors how the batch changed, from slot arrays that do not move anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from fastdeploy_lp.logits_processor.vllm_v1 import AddedRequest, BatchUpdate, MoveDirectionality, MovedRequest


class BatchTracker:
    """Keeps the row of every request as vLLM's persistent batch would, and ends each update in slot order.

    The rules are those of vLLM's document: new requests take freed rows, lowest first, then extend the batch; rows left
    free are removed and the batch is condensed by one-way moves from the highest row to the lowest hole; swaps then
    bring the rows into the order of the logits.
    """

    def __init__(self) -> None:
        self._rows: list[str] = []

    def update(self, share_inputs: Mapping[str, Any]) -> BatchUpdate | None:
        """The changes since the last call, None if the rows are the same requests in the same order."""
        active = np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist()
        wanted = [share_inputs["req_ids"][slot] for slot in active]
        if wanted == self._rows:
            return None
        slots = dict(zip(wanted, active, strict=True))
        old = set(self._rows)
        free = [row for row, request in enumerate(self._rows) if request not in slots]
        added = [self._add(request, free, share_inputs, slots[request]) for request in wanted if request not in old]
        removed, moved = list(free), self._condense(free)
        moved += self._reorder(wanted)
        return BatchUpdate(len(wanted), removed, added, moved)

    def _add(self, request: str, free: list[int], share_inputs: Mapping[str, Any], slot: int) -> AddedRequest:
        if free:
            row = free.pop(0)
            self._rows[row] = request
        else:
            row = len(self._rows)
            self._rows.append(request)
        args = share_inputs["logits_processors_args"][slot]
        params = msgspec.structs.replace(share_inputs["sampling_params"][slot], extra_args=dict(args) or None)
        return row, params, share_inputs["prompt_token_ids"][slot], share_inputs["output_token_ids"][slot]

    def _condense(self, holes: list[int]) -> list[MovedRequest]:
        moves: list[MovedRequest] = []
        remaining = set(holes)
        while remaining:
            last = len(self._rows) - 1
            if last in remaining:
                remaining.discard(last)
            else:
                hole = min(remaining)
                remaining.discard(hole)
                self._rows[hole] = self._rows[last]
                moves.append((last, hole, MoveDirectionality.UNIDIRECTIONAL))
            self._rows.pop()
        return moves

    def _reorder(self, wanted: list[str]) -> list[MovedRequest]:
        moves: list[MovedRequest] = []
        where = {request: row for row, request in enumerate(self._rows)}
        for row, request in enumerate(wanted):
            current = where[request]
            if current == row:
                continue
            other = self._rows[row]
            self._rows[row], self._rows[current] = request, other
            where[request], where[other] = row, current
            moves.append((current, row, MoveDirectionality.SWAP))
        return moves
