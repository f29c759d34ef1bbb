"""Which keys and values of a draft model are in the blocks of the sequences."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.worker.block_manager import BlockTables
from fastdeploy_lp.worker.drafters.greedy_model import GreedyModel
from fastdeploy_lp.worker.sequence import Sequence

UNKNOWN = b""


@dataclass(slots=True)
class _Slot:
    """The first `known` tokens of a sequence have keys and values; the tokens `drafted` follow.

    Of `drafted` only tokens in the sequence's own blocks count. The first `named` blocks have their names.
    """

    known: int = 0
    drafted: list[int] = field(default_factory=list)
    named: int = 0


class DraftCache:
    """Follows what a draft model has computed, in a cache with the same block ids as that of the served model.

    So a block needs no second manager: who holds it for the served model holds it here. But it has keys of the draft
    model only if that model computed the block's tokens since the block was assigned. Each full block therefore has
    the name of its content, its hash in the prefix cache; a sequence that shares the block compares the names, and
    computes the tokens from the first block on whose name is another one. Every write to a block renames it.
    """

    def __init__(self, model: GreedyModel, block_size: int, max_num_seqs: int, max_model_len: int) -> None:
        self._model = model
        self._block_size = block_size
        self._names = [UNKNOWN] * model.num_blocks
        blocks = -(-max_model_len // block_size) + len(model.spare(0))
        self._tables = BlockTables(max_num_seqs, blocks)
        self._slots: dict[int, _Slot] = {}

    def leave(self, slot: int) -> None:
        """Forgets a slot's sequence; the names of its full blocks stay."""
        self._slots.pop(slot, None)
        self._tables.leave(slot)

    def table(self, sequence: Sequence) -> NDArray[np.int32]:
        """Returns the blocks of a sequence in a slot, its private ones after its own, and undefined entries."""
        row, held, spare = self._tables.row(sequence), len(sequence.block_table), self._model.spare(sequence.slot)
        row[held : held + len(spare)] = spare
        return row

    def known(self, sequence: Sequence) -> int:
        """Returns how many of a sequence's first tokens need not be computed: all but the last one at most."""
        slot = self._slots.setdefault(sequence.slot, _Slot())
        came = sequence.token_ids_between(slot.known, slot.known + len(slot.drafted)) if slot.drafted else []
        for drafted, token in zip(slot.drafted, came, strict=False):
            if drafted != token:
                break
            slot.known += 1
        slot.drafted = []
        while slot.known % self._block_size == 0 and self._has(sequence, slot.known // self._block_size):
            slot.known += self._block_size
        slot.known = min(slot.known, sequence.num_tokens - 1)
        return slot.known

    def computed(self, sequence: Sequence, end: int) -> None:
        """Records that the sequence's first `end` tokens are computed."""
        self._slots[sequence.slot].known = end
        self._rename(sequence, end)

    def drafted(self, sequence: Sequence, tokens: list[int]) -> None:
        """Records the computed draft tokens after a sequence whose own tokens are all computed."""
        own = len(sequence.block_table) * self._block_size
        self._slots[sequence.slot].drafted = tokens[: own - sequence.num_tokens]
        self._rename(sequence, sequence.num_tokens + len(tokens))

    def _has(self, sequence: Sequence, index: int) -> bool:
        """Returns True if a full block of a sequence has its keys and values."""
        hashes = sequence.block_hashes
        return index < len(hashes) and self._names[sequence.block_table[index]] == hashes[index]

    def _rename(self, sequence: Sequence, end: int) -> None:
        """Names the sequence's full computed blocks; other blocks up to position `end` lose their names."""
        slot, table, hashes = self._slots[sequence.slot], sequence.block_table, sequence.block_hashes
        full = min(slot.known // self._block_size, len(hashes))
        for index in range(slot.named, min(-(-end // self._block_size), len(table))):
            self._names[table[index]] = hashes[index] if index < full else UNKNOWN
        slot.named = max(slot.named, full)
