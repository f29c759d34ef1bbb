"""The copy of a KV-cache block."""

from __future__ import annotations

from typing import Protocol


class BlockCopier(Protocol):
    """Copies the keys and values of a block in all layers, after the passes so far and before those that follow."""

    def __call__(self, source: int, target: int, /) -> None: ...
