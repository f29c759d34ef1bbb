"""Index from token prefixes to KV-cache blocks, so that sequences with the same beginning share them."""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

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


@dataclass(frozen=True, slots=True)
class _KnownBlock:
    """A block's name, its own tokens, and where it is among the children: the block before it, and its first client."""

    name: bytes
    tokens: tuple[int, ...]
    place: tuple[bytes, str]


class PrefixCache:
    """Full blocks by the hash of all tokens up to their end. Does not track the holders of blocks.

    With `record_events`, additions and removals are kept until `take_events`.
    """

    def __init__(self, block_size: int, *, record_events: bool = False) -> None:
        self._block_size = block_size
        self._block_of: dict[bytes, int] = {}
        self._known: dict[int, _KnownBlock] = {}
        # Sorted, so that the tokens with the longest common beginning are neighbours.
        self._children: dict[tuple[bytes, str], list[tuple[tuple[int, ...], int]]] = {}
        self._events: list[KVEvent] = []
        self._record_events = record_events

    def __len__(self) -> int:
        return len(self._block_of)

    def __contains__(self, block: int) -> bool:
        return block in self._known

    def find(self, hashes: Sequence[bytes]) -> list[int]:
        """Returns the blocks of the longest known prefix of a chain of hashes."""
        found: list[int] = []
        for name in hashes:
            block = self._block_of.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def find_part(self, parent: bytes, token_ids: Sequence[int], client: str) -> tuple[int, int]:
        """Returns the client's block after `parent` that has the most of the first of these tokens, and their number.

        The number is 0 if none of the blocks begins with the first token. A block of another client would reveal that
        client's prompt token by token.
        """
        children, wanted = self._children.get((parent, client), []), tuple(token_ids)
        place = bisect_left(children, (wanted,))
        near = children[max(place - 1, 0) : place + 1]
        count, block = max(((_common(tokens, wanted), block) for tokens, block in near), default=(0, 0))
        return block, count

    def store(
        self, blocks: Sequence[int], hashes: Sequence[bytes], parent: bytes, token_ids: Sequence[int], client: str = ""
    ) -> None:
        """Makes consecutive blocks of a sequence known; a block whose tokens another block already holds stays private.

        `parent` names the block before the first, ROOT if there is none; `token_ids` covers all the blocks.
        """
        new = [name not in self._block_of for name in hashes]
        for index in (index for index, is_new in enumerate(new) if is_new):
            tokens = tuple(token_ids[index * self._block_size : (index + 1) * self._block_size])
            known = _KnownBlock(hashes[index], tokens, (hashes[index - 1] if index else parent, client))
            self._block_of[known.name], self._known[blocks[index]] = blocks[index], known
            insort(self._children.setdefault(known.place, []), (tokens, blocks[index]))
        if self._record_events:
            self._record_stored(hashes, new, parent, token_ids)

    def forget(self, block: int) -> None:
        """Removes a block whose memory is about to be reused."""
        known = self._known.pop(block)
        name = known.name
        del self._block_of[name]
        children = self._children[known.place]
        del children[bisect_left(children, (known.tokens, block))]
        if not children:
            del self._children[known.place]
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


def _common(some: Sequence[int], others: Sequence[int]) -> int:
    """Returns the number of equal tokens at the beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(some, others, strict=False)))
