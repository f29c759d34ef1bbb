"""The copy of a KV-cache block."""

from __future__ import annotations

from typing import Protocol


class BlockCopier(Protocol):
    """Copies the keys and values of a block in all layers, in order with the passes that are queued."""

    def __call__(self, source: int, target: int, /) -> None: ...
