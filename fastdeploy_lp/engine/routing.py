"""Which of several workers a request goes to: the one place where this is chosen."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence

# Of its slots, by which a worker that knows a whole prompt may be busier than the others and still be chosen.
AFFINITY_SHARE = 4


class GivenPrefixes:
    """The beginnings of prompts that one worker was given, in blocks; the least recently used are forgotten.

    block_size: tokens of a block. capacity: blocks that are remembered, as many as the worker's cache holds.
    """

    def __init__(self, block_size: int, capacity: int) -> None:
        self._block_size = block_size
        self._capacity = capacity
        self._known: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def known_share(self, chain: Sequence[int]) -> float:
        """The share of a prompt's blocks, from the first on, that are known; 0 for a prompt without a full block."""
        known = sum(1 for _ in itertools.takewhile(self._known.__contains__, chain))
        return known / len(chain) if chain else 0.0

    def add(self, chain: Sequence[int]) -> None:
        """The worker is given these blocks."""
        # From the end, so that the beginnings, without which the others are of no use, are forgotten last.
        for name in reversed(chain):
            self._known[name] = None
            self._known.move_to_end(name)
        while len(self._known) > self._capacity:
            self._known.popitem(last=False)

    def clear(self) -> None:
        """The worker knows nothing any more."""
        self._known.clear()


class Router:
    """Least loaded, but a worker that was given the beginning of a prompt before may be somewhat busier.

    num_workers: how many there are. num_slots: of each. block_size, num_blocks: of each worker's cache. Without
    `prefix_affine` the load alone counts. Of equals the one that was chosen longest ago is taken.
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
        """The index of the worker for a prompt, which counts as given to it.

        loads: each worker's sequences in flight, None for one that takes none. Raises ValueError when none takes any.
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
        """A worker has been started, and has an empty cache."""
        self._given[index].clear()


def cost_of(load: int, known_share: float, num_slots: int) -> tuple[bool, float]:
    """What speaks against a worker with so many sequences that knows this share of a prompt; the smaller, the better.

    Whoever has no slot comes last: computing a prompt again takes less time than the wait for one.
    """
    return load >= num_slots, load - max(num_slots / AFFINITY_SHARE, 1.0) * known_share


def chain_of(prompt: Sequence[Hashable], block_size: int) -> Iterator[int]:
    """A name for each full block of a prompt, tokens or text, and all that is before it; of this process alone."""
    name = 0
    for end in range(block_size, len(prompt) + 1, block_size):
        name = hash((name, *prompt[end - block_size : end]))
        yield name
