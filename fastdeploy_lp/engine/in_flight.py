"""Sequences that have not ended, by the ids that the worker knows, and the requests that they are of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from fastdeploy_lp.engine.completion import Completion
from fastdeploy_lp.engine.generation import Generation
from fastdeploy_lp.engine.pooling import Pooling

Work: TypeAlias = Generation | Pooling


class InFlight:
    """A request has one sequence for each of its completions, or one if it is pooled."""

    def __init__(self) -> None:
        self._completions: dict[str, tuple[Generation, Completion]] = {}
        self._poolings: dict[str, Pooling] = {}

    def __len__(self) -> int:
        return len(self._completions) + len(self._poolings)

    @property
    def works(self) -> list[Work]:
        """Each request once."""
        return self.works_of([*self._completions, *self._poolings])

    def works_of(self, sequence_ids: Iterable[str]) -> list[Work]:
        """The requests of these sequences, each once; raises KeyError for one that is not in flight."""
        found: dict[int, Work] = {}
        for name in sequence_ids:
            work = self._poolings[name] if name in self._poolings else self._completions[name][0]
            found[work.serial] = work
        return list(found.values())

    def add(self, work: Work) -> None:
        """All sequences of a request."""
        if isinstance(work, Pooling):
            self._poolings[pooling_id(work)] = work
        else:
            self._completions |= {sequence_id(work, each): (work, each) for each in work.completions}

    def completion(self, name: str) -> tuple[Generation, Completion] | None:
        """A sequence of a generation; None for any other id."""
        return self._completions.get(name)

    def pooling(self, name: str) -> Pooling | None:
        """A prompt that is pooled; None for any other id."""
        return self._poolings.get(name)

    def remove(self, name: str) -> None:
        """One sequence has ended."""
        self._completions.pop(name, None)
        self._poolings.pop(name, None)

    def remove_generation(self, generation: Generation) -> dict[str, Completion]:
        """Forget what of it has not ended; gives that by id."""
        names = {sequence_id(generation, each): each for each in generation.completions}
        return {name: each for name, each in names.items() if self._completions.pop(name, None) is not None}

    def remove_pooling(self, pooling: Pooling) -> list[str]:
        """Forget it; gives its id if it has not ended."""
        name = pooling_id(pooling)
        return [name] if self._poolings.pop(name, None) is not None else []


def sequence_id(generation: Generation, completion: Completion) -> str:
    """The worker's name of a completion, which is of one request only.

    Clients choose ids and may use one again while the worker still tells of the last request that had it.
    """
    return f"{generation.request_id}-{completion.index}-{generation.serial}"


def pooling_id(pooling: Pooling) -> str:
    """The worker's name of a prompt that is pooled."""
    return f"{pooling.request_id}-{pooling.serial}"
