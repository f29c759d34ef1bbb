"""Types of quantized blocks that a converted checkpoint keeps as its GGUF file has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class BlockType:
    """A type under its name in GGUF files. weights, bytes: of a block. scales: places of half floats in a block."""

    name: str
    weights: int
    bytes: int
    scales: tuple[int, ...]

    def row_bytes(self, weights: int) -> int:
        """Returns the bytes of a row; raises ValueError for a row that is not made of whole blocks."""
        if weights % self.weights:
            raise ValueError(f"rows of {weights} are no whole {self.name} blocks of {self.weights}")
        return weights // self.weights * self.bytes

    def is_finite(self, rows: NDArray[np.uint8]) -> bool:
        """Returns True if no weight of the blocks [..., bytes] is NaN or infinite."""
        blocks = rows.reshape(-1, self.bytes)
        return all(bool(np.isfinite(blocks[:, at : at + 2].copy().view("<f2")).all()) for at in self.scales)

    def floats(self, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Returns the weights of blocks [..., bytes]."""
        # Imported late: most models have no blocks.
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        with np.errstate(all="ignore"):
            found: NDArray[Any] = dequantize(rows, GGMLQuantizationType[self.name])
        return np.asarray(found, np.float32)


BLOCK_TYPES = {
    kind.name: kind
    for kind in (
        BlockType("Q4_K", 256, 144, (0, 2)),
        BlockType("Q5_K", 256, 176, (0, 2)),
        BlockType("Q6_K", 256, 210, (208,)),
    )
}
