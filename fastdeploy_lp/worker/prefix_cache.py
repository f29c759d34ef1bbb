"""Index from token prefixes to KV-cache blocks, so that sequences with the same beginning share them."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from fastdeploy_lp.worker.kv_events import BlockRemoved, BlockStored, KVEvent

# Parent of a sequence's first block.
ROOT = bytes(16)


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Returns the 16-byte name of a full block of these tokens after the block `parent`; equal in all processes."""
    tokens = struct.pack(f"<{len(token_ids)}q", *token_ids)
    return hashlib.blake2b(parent + tokens, digest_size=len(ROOT)).digest()


def published_hash(name: bytes) -> int:
    """Returns a block's name as used in events: an opaque 64-bit number."""
    return int.from_bytes(name[:8], "big")


class PrefixCache:
    """Full blocks by the hash of all tokens up to their end. Does not track the holders of blocks.

    With `record_events`, additions and removals are kept until `take_events`.
    """

    def __init__(self, block_size: int, *, record_events: bool = False) -> None:
        self._block_size = block_size
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self._events: list[KVEvent] = []
        self._record_events = record_events

    def __len__(self) -> int:
        return len(self._block_of)

    def __contains__(self, block: int) -> bool:
        return block in self._hash_of

    def find(self, hashes: Sequence[bytes]) -> list[int]:
        """Returns the blocks of the longest known prefix of a chain of hashes."""
        found: list[int] = []
        for name in hashes:
            block = self._block_of.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def store(self, blocks: Sequence[int], hashes: Sequence[bytes], parent: bytes, token_ids: Sequence[int]) -> None:
        """Makes consecutive blocks of a sequence known; a block whose tokens another block already holds stays private.

        `parent` names the block before the first, ROOT if there is none; `token_ids` covers all the blocks.
        """
        new = [name not in self._block_of for name in hashes]
        for block, name, is_new in zip(blocks, hashes, new, strict=True):
            if is_new:
                self._block_of[name] = block
                self._hash_of[block] = name
        if self._record_events:
            self._record_stored(hashes, new, parent, token_ids)

    def forget(self, block: int) -> None:
        """Removes a block whose memory is about to be reused."""
        name = self._hash_of.pop(block)
        del self._block_of[name]
        if not self._record_events:
            return
        if self._events and isinstance(self._events[-1], BlockRemoved):
            self._events[-1].block_hashes.append(published_hash(name))
        else:
            self._events.append(BlockRemoved([published_hash(name)]))

    def take_events(self) -> list[KVEvent]:
        """Returns the changes since the last call, in order."""
        events, self._events = self._events, []
        return events

    def _record_stored(
        self, hashes: Sequence[bytes], new: Sequence[bool], parent: bytes, token_ids: Sequence[int]
    ) -> None:
        """Records one event for each run of new blocks."""
        size = self._block_size
        before = [parent, *hashes]
        start = 0
        while start < len(hashes):
            end = start
            while end < len(hashes) and new[end]:
                end += 1
            if end > start:
                above = None if before[start] == ROOT else published_hash(before[start])
                names = [published_hash(name) for name in hashes[start:end]]
                self._events.append(BlockStored(names, above, list(token_ids[start * size : end * size]), size))
            start = end + 1
