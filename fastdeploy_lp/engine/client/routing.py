"""Chooses a worker for each request by load and cached prefix; no other code makes this choice."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence

# A worker that has a whole prompt cached may be busier than the others by its slots divided by this.
AFFINITY_SHARE = 4


class GivenPrefixes:
    """Prompt prefixes sent to one worker, in blocks; the least recently used are evicted.

    block_size: tokens per block. capacity: number of blocks remembered, equal to the worker's cache.
    """

    def __init__(self, block_size: int, capacity: int) -> None:
        self._block_size = block_size
        self._capacity = capacity
        self._known: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def known_share(self, chain: Sequence[int]) -> float:
        """Returns the share of a prompt's leading blocks that are known; 0 for a prompt without a full block."""
        known = sum(1 for _ in itertools.takewhile(self._known.__contains__, chain))
        return known / len(chain) if chain else 0.0

    def add(self, chain: Sequence[int]) -> None:
        """Adds blocks sent to the worker."""
        # In reverse order, so that first blocks are evicted last: later blocks are useless without them.
        for name in reversed(chain):
            self._known[name] = None
            self._known.move_to_end(name)
        while len(self._known) > self._capacity:
            self._known.popitem(last=False)

    def clear(self) -> None:
        """Forgets all blocks: the worker's cache is empty."""
        self._known.clear()


class Router:
    """Chooses the least loaded worker, but accepts a somewhat busier one that has a prefix of the prompt.

    num_slots: slots of each worker. block_size, num_blocks: of each worker's cache. Without `prefix_affine` only the
    load counts. Among equals, the worker chosen longest ago is next.
    """

    def __init__(
        self, num_workers: int, num_slots: int, block_size: int, num_blocks: int, *, prefix_affine: bool = True
    ) -> None:
        self._num_slots = num_slots
        self._block_size = block_size
        self._prefix_affine = prefix_affine
        self._given = [GivenPrefixes(block_size, num_blocks) for _ in range(num_workers)]
        self._chosen = [0] * num_workers
        self._turn = itertools.count(1)

    def choose(self, token_ids: Sequence[int], loads: Sequence[int | None]) -> int:
        """Returns the index of the worker for a prompt, and remembers the prompt as sent to it.

        loads: each worker's sequences in flight, None for one that accepts none. Raises ValueError if none accepts any.
        """
        open_workers = [index for index, load in enumerate(loads) if load is not None]
        if not open_workers:
            raise ValueError("loads: no worker takes requests")
        chain = list(chain_of(token_ids, self._block_size)) if self._prefix_affine else []

        def cost(index: int) -> tuple[bool, float, int]:
            known = self._given[index].known_share(chain)
            return (*cost_of(loads[index] or 0, known, self._num_slots), self._chosen[index])

        best = min(open_workers, key=cost)
        self._chosen[best] = next(self._turn)
        self._given[best].add(chain)
        return best

    def forget(self, index: int) -> None:
        """Forgets a worker's prefixes: a new worker has an empty cache."""
        self._given[index].clear()


def cost_of(load: int, known_share: float, num_slots: int) -> tuple[bool, float]:
    """Returns the cost of a worker with this load and cached prefix share; lower is better.

    Workers without a free slot are last: computing a prompt again takes less time than waiting for a slot.
    """
    return load >= num_slots, load - max(num_slots / AFFINITY_SHARE, 1.0) * known_share


def chain_of(prompt: Sequence[Hashable], block_size: int) -> Iterator[int]:
    """Yields a hash of each full block of a prompt (tokens or text) with its prefix; valid in this process only."""
    name = 0
    for end in range(block_size, len(prompt) + 1, block_size):
        name = hash((name, *prompt[end - block_size : end]))
        yield name
