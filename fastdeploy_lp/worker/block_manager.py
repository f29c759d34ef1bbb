"""Which KV-cache block belongs to which sequence."""

from __future__ import annotations

from fastdeploy_lp.worker.sequence import Sequence

NULL_BLOCK = 0


class BlockManager:
    """Hands out blocks 1 … num_blocks - 1; block 0 is the null block and stays free of data."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._free = list(range(num_blocks - 1, NULL_BLOCK, -1))

    @property
    def num_free(self) -> int:
        """Blocks that no sequence holds."""
        return len(self._free)

    def grow(self, sequence: Sequence) -> None:
        """Give the sequence blocks for all of its tokens.

        The cache is sized for every slot at full length, so running out is a fault of the engine: RuntimeError.
        """
        needed = -(-sequence.num_tokens // self._block_size) - len(sequence.block_table)
        if needed > len(self._free):
            raise RuntimeError(f"KV cache: {needed} blocks needed, {len(self._free)} free")
        for _ in range(needed):
            sequence.block_table.append(self._free.pop())

    def release(self, sequence: Sequence) -> None:
        """Take the sequence's blocks back."""
        self._free.extend(reversed(sequence.block_table))
        sequence.block_table.clear()
