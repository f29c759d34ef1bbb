"""KV-cache blocks: their assignment to sequences, the index of shared prefixes, and the tables that passes read."""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Sequence as AnySequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.model_executor.block_copier import BlockCopier
from fastdeploy_lp.worker.kv_events import BlockRemoved, BlockStored, KVEvent
from fastdeploy_lp.worker.sequence import Sequence

# Parent of a sequence's first block, without a salt.
ROOT = bytes(16)
NULL_BLOCK = 0
# A block is copied for at least one token in this many. Measured with 60 tensors of 6 KB: 0.07 ms by the compiled
# operators, which compute a token in 0.5 ms; Paddle's take longer.
TOKENS_PER_COPIED = 8


def block_hash(parent: bytes, token_ids: AnySequence[int]) -> bytes:
    """Returns the 16-byte name of a full block of these tokens after the block `parent`; equal in all processes."""
    tokens = struct.pack(f"<{len(token_ids)}q", *token_ids)
    return hashlib.blake2b(parent + tokens, digest_size=len(ROOT)).digest()


def root_of(sequence: Sequence) -> bytes:
    """Returns the parent of a sequence's first block: no block is shared between sequences with different salts."""
    salt = sequence.params.cache_salt
    if salt is None:
        return ROOT
    return hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=len(ROOT)).digest()


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

    def find(self, hashes: AnySequence[bytes]) -> list[int]:
        """Returns the blocks of the longest known prefix of a chain of hashes."""
        found: list[int] = []
        for name in hashes:
            block = self._block_of.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def find_part(self, parent: bytes, token_ids: AnySequence[int], client: str) -> tuple[int, int]:
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
        self,
        blocks: AnySequence[int],
        hashes: AnySequence[bytes],
        parent: bytes,
        token_ids: AnySequence[int],
        client: str = "",
        root: bytes = ROOT,
    ) -> None:
        """Makes consecutive blocks of a sequence known; a block whose tokens another block already holds stays private.

        `parent` names the block before the first, `root` if there is none; `token_ids` covers all the blocks.
        """
        new = [name not in self._block_of for name in hashes]
        for index in (index for index, is_new in enumerate(new) if is_new):
            tokens = tuple(token_ids[index * self._block_size : (index + 1) * self._block_size])
            known = _KnownBlock(hashes[index], tokens, (hashes[index - 1] if index else parent, client))
            self._block_of[known.name], self._known[blocks[index]] = blocks[index], known
            insort(self._children.setdefault(known.place, []), (tokens, blocks[index]))
        if self._record_events:
            self._record_stored(hashes, new, None if parent == root else parent, token_ids)

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
        self, hashes: AnySequence[bytes], new: AnySequence[bool], parent: bytes | None, token_ids: AnySequence[int]
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
                above = before[start]
                names = [published_hash(name) for name in hashes[start:end]]
                parent_name = None if above is None else published_hash(above)
                self._events.append(BlockStored(names, parent_name, list(token_ids[start * size : end * size]), size))
            start = end + 1


@dataclass(frozen=True)
class KnownPrefix:
    """Known keys and values for a sequence: whole `blocks`, and the first `num_copied` tokens of the block `source`."""

    blocks: list[int]
    source: int = NULL_BLOCK
    num_copied: int = 0


class BlockManager:
    """Allocates blocks 1 … num_blocks - 1; block 0 is the null block and stays free of data.

    With `prefix_caching`, full computed blocks are known by their tokens, and sequences with the same beginning share
    them. A known block without a holder is free but keeps its data until it is reused; the least recently released one
    is reused first. With `copy_block(source, target)`, a sequence whose tokens agree with the first ones of a block of
    the same client begins with a copy of it. With `record_events`, changes of the known blocks are kept for
    `take_events`.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        prefix_caching: bool = True,
        copy_block: BlockCopier | None = None,
        record_events: bool = False,
    ) -> None:
        self._block_size = block_size
        self._num_blocks = num_blocks
        # The last block released is the first reused: its memory has been touched already.
        self._blank = list(range(num_blocks - 1, NULL_BLOCK, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._holders = [0] * num_blocks
        self._cache = PrefixCache(block_size, record_events=record_events) if prefix_caching else None
        self._copy_block = copy_block
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0

    @property
    def num_total(self) -> int:
        """Blocks that sequences can hold."""
        return self._num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that no sequence holds."""
        return len(self._blank) + len(self._idle)

    @property
    def num_used(self) -> int:
        """Blocks that sequences hold; a shared one counts once."""
        return self.num_total - self.num_free

    def find_prefix(self, sequence: Sequence) -> KnownPrefix:
        """Returns the known blocks that a sequence without blocks can begin with; its last token is always computed.

        Empty for a sequence that needs the hidden state of every token of its prompt.
        """
        if self._cache is None:
            return KnownPrefix([])
        self._hash_up_to(sequence, sequence.num_tokens)
        if sequence.needs_whole_prompt:
            return KnownPrefix([])
        size, usable = self._block_size, sequence.num_tokens - 1
        blocks = self._cache.find(sequence.block_hashes[: usable // size])
        if self._copy_block is None:
            return KnownPrefix(blocks)
        start = len(blocks) * size
        parent = sequence.block_hashes[len(blocks) - 1] if blocks else root_of(sequence)
        wanted = sequence.token_ids_between(start, min(start + size, usable))
        source, count = self._cache.find_part(parent, wanted, sequence.client)
        return KnownPrefix(blocks, source, count) if count * TOKENS_PER_COPIED >= size else KnownPrefix(blocks)

    def admit(self, sequence: Sequence, prefix: KnownPrefix, *, spare: int = 0) -> bool:
        """Assigns a sequence its `prefix`, just found, and blocks for all of its other tokens.

        Returns False and takes nothing if fewer than `spare` blocks would be left.
        """
        known = len(prefix.blocks)
        missing = self._blocks_for(sequence.num_tokens) - known
        idle = sum(self._holders[block] == 0 for block in prefix.blocks)
        if missing + idle + spare > self.num_free:
            return False
        for block in prefix.blocks:
            self._holders[block] += 1
            self._idle.pop(block, None)
        if prefix.source in self._idle:
            self._idle.move_to_end(prefix.source)
        sequence.block_table = prefix.blocks + [self._take() for _ in range(missing)]
        # The source may have become a block of this sequence; until a pass writes to it, it keeps its data.
        if prefix.num_copied and self._copy_block is not None and prefix.source != sequence.block_table[known]:
            self._copy_block(prefix.source, sequence.block_table[known])
        sequence.num_known_blocks = known
        sequence.num_computed = known * self._block_size + prefix.num_copied
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = sequence.num_computed
            if self._cache is not None:
                self.num_queried_tokens += sequence.num_tokens
                self.num_hit_tokens += sequence.num_computed
        return True

    def grow(self, sequence: Sequence) -> bool:
        """Assigns the sequence blocks for all of its tokens; returns False and takes nothing if too few are free."""
        missing = self._blocks_for(sequence.num_tokens) - len(sequence.block_table)
        if missing > self.num_free:
            return False
        for _ in range(missing):
            sequence.block_table.append(self._take())
        return True

    def grow_ahead(self, sequence: Sequence, count: int, *, spare: int) -> int:
        """Assigns blocks for up to `count` more tokens; returns the number that fit if `spare` blocks stay free."""
        held = len(sequence.block_table)
        missing = self._blocks_for(sequence.num_tokens + count) - held
        taken = min(max(missing, 0), max(self.num_free - spare, 0))
        for _ in range(taken):
            sequence.block_table.append(self._take())
        return min(count, (held + taken) * self._block_size - sequence.num_tokens)

    def share_computed(self, sequence: Sequence) -> None:
        """Makes full blocks known once their keys and values are computed."""
        full = sequence.num_computed // self._block_size
        known = sequence.num_known_blocks
        if full <= known or self._cache is None:
            return
        self._hash_up_to(sequence, sequence.num_computed)
        hashes, root = sequence.block_hashes, root_of(sequence)
        self._cache.store(
            sequence.block_table[known:full],
            hashes[known:full],
            hashes[known - 1] if known else root,
            sequence.token_ids_between(known * self._block_size, full * self._block_size),
            sequence.client,
            root,
        )
        sequence.num_known_blocks = full

    def completed_by(self, sequence: Sequence, num_tokens: int) -> list[bytes]:
        """Returns the names of the blocks that computing the next `num_tokens` of the prompt completes."""
        start = sequence.num_computed // self._block_size
        return sequence.block_hashes[start : (sequence.num_computed + num_tokens) // self._block_size]

    def release(self, sequence: Sequence) -> None:
        """Frees the sequence's blocks; its tokens must be computed, or found in the cache, again."""
        self._free(sequence, 0)
        sequence.num_computed = sequence.num_known_blocks = 0

    def rewind(self, sequence: Sequence) -> None:
        """Frees the blocks after a sequence's tokens, of which the last ones were taken back; the last one is computed
        again.

        A known block may have other holders and is never written again: if that token is in one, the sequence computes
        this block's tokens in another block.
        """
        last = sequence.num_tokens - 1
        kept = last // self._block_size
        if sequence.num_known_blocks > kept:
            self._free(sequence, kept)
            sequence.num_known_blocks, sequence.num_computed = kept, kept * self._block_size
        else:
            self._free(sequence, kept + 1)
            sequence.num_computed = last
        del sequence.block_hashes[sequence.num_tokens // self._block_size :]

    def _free(self, sequence: Sequence, kept: int) -> None:
        """Frees all blocks of a sequence but the first `kept`."""
        # From the end, since a block is useless without the blocks before it.
        for block in reversed(sequence.block_table[kept:]):
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            if self._cache is not None and block in self._cache:
                self._idle[block] = None
            else:
                self._blank.append(block)
        del sequence.block_table[kept:]

    def take_events(self) -> list[KVEvent]:
        """Returns the changes of the known blocks since the last call, in order."""
        return [] if self._cache is None else self._cache.take_events()

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def _take(self) -> int:
        if self._blank:
            block = self._blank.pop()
        else:
            block, _ = self._idle.popitem(last=False)
            if self._cache is not None:
                self._cache.forget(block)
        self._holders[block] = 1
        return block

    def _hash_up_to(self, sequence: Sequence, num_tokens: int) -> None:
        hashes, size = sequence.block_hashes, self._block_size
        for index in range(len(hashes), num_tokens // size):
            parent = hashes[-1] if hashes else root_of(sequence)
            hashes.append(block_hash(parent, sequence.token_ids_between(index * size, (index + 1) * size)))


class BlockTables:
    """Block table rows, one per slot, int32 [max_num_seqs, blocks of a full context]; a step writes only new blocks."""

    def __init__(self, max_num_seqs: int, max_blocks: int) -> None:
        self._rows = np.zeros((max_num_seqs, max_blocks), np.int32)
        self._filled = [0] * max_num_seqs

    def enter(self, sequence: Sequence) -> None:
        """See `SlotFollower`; the row is filled when it is read."""

    def leave(self, slot: int) -> None:
        """Marks the slot's row as empty; the next sequence overwrites old entries before they are read."""
        self._filled[slot] = 0

    def row(self, sequence: Sequence) -> NDArray[np.int32]:
        """Returns the block table of a sequence in a slot, followed by undefined entries."""
        filled, table = self._filled[sequence.slot], sequence.block_table
        row: NDArray[np.int32] = self._rows[sequence.slot]
        if filled < len(table):
            row[filled : len(table)] = table[filled:]
            self._filled[sequence.slot] = len(table)
        return row


def _common(some: AnySequence[int], others: AnySequence[int]) -> int:
    """Returns the number of equal tokens at the beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(some, others, strict=False)))
