"""Running and waiting sequences by their worker ids, with their requests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from fastdeploy_lp.engine.completion import Completion
from fastdeploy_lp.engine.generation import Generation
from fastdeploy_lp.engine.pooling import Pooling

Work: TypeAlias = Generation | Pooling


class InFlight:
    """The sequences in flight: one per completion of a request, or one for a pooling request."""

    def __init__(self) -> None:
        self._completions: dict[str, tuple[Generation, Completion]] = {}
        self._poolings: dict[str, Pooling] = {}

    def __len__(self) -> int:
        return len(self._completions) + len(self._poolings)

    @property
    def works(self) -> list[Work]:
        """All requests, each once."""
        return self.works_of([*self._completions, *self._poolings])

    def works_of(self, sequence_ids: Iterable[str]) -> list[Work]:
        """Returns the requests of these sequences, each once; raises KeyError for one that is not in flight."""
        found: dict[int, Work] = {}
        for name in sequence_ids:
            work = self._poolings[name] if name in self._poolings else self._completions[name][0]
            found[work.serial] = work
        return list(found.values())

    def add(self, work: Work) -> None:
        """Adds all sequences of a request."""
        if isinstance(work, Pooling):
            self._poolings[pooling_id(work)] = work
        else:
            self._completions |= {sequence_id(work, each): (work, each) for each in work.completions}

    def completion(self, name: str) -> tuple[Generation, Completion] | None:
        """Returns the generation and completion of a sequence; None for any other id."""
        return self._completions.get(name)

    def pooling(self, name: str) -> Pooling | None:
        """Returns the pooling request with this id; None for any other id."""
        return self._poolings.get(name)

    def remove(self, name: str) -> None:
        """Removes a sequence that has ended."""
        self._completions.pop(name, None)
        self._poolings.pop(name, None)

    def remove_generation(self, generation: Generation) -> dict[str, Completion]:
        """Removes the sequences that have not ended, and returns them by id."""
        names = {sequence_id(generation, each): each for each in generation.completions}
        return {name: each for name, each in names.items() if self._completions.pop(name, None) is not None}

    def remove_pooling(self, pooling: Pooling) -> list[str]:
        """Removes a pooling request; returns its id if it had not ended."""
        name = pooling_id(pooling)
        return [name] if self._poolings.pop(name, None) is not None else []


def sequence_id(generation: Generation, completion: Completion) -> str:
    """Returns the worker's name of a completion, unique to its request.

    Clients choose request ids and may reuse one while the worker still reports on the previous request with it.
    """
    return f"{generation.request_id}-{completion.index}-{generation.serial}"


def pooling_id(pooling: Pooling) -> str:
    """Returns the worker's name of a pooling prompt."""
    return f"{pooling.request_id}-{pooling.serial}"
