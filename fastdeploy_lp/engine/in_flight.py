"""Running and waiting sequences by their worker ids, with their requests."""

from __future__ import annotations

from collections.abc import Iterable

from fastdeploy_lp.engine.work import Work


class InFlight:
    """The sequences in flight: one per completion of a request, or one for a pooled prompt."""

    def __init__(self) -> None:
        self._sequences: dict[str, tuple[Work, int]] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, sequence_id: str) -> bool:
        return sequence_id in self._sequences

    @property
    def works(self) -> list[Work]:
        """All requests, each once."""
        return self.works_of(self._sequences)

    def works_of(self, sequence_ids: Iterable[str]) -> list[Work]:
        """Returns the requests of these sequences, each once; raises KeyError for one that is not in flight."""
        return list({(work := self._sequences[name][0]).serial: work for name in sequence_ids}.values())

    def add(self, work: Work) -> None:
        """Adds all sequences of a request."""
        self._sequences |= {name: (work, index) for index, name in enumerate(work.sequence_ids)}

    def find(self, sequence_id: str) -> tuple[Work, int] | None:
        """Returns the request of a sequence and the sequence's index in it; None for any other id."""
        return self._sequences.get(sequence_id)

    def remove(self, sequence_id: str) -> None:
        """Removes a sequence that has ended."""
        self._sequences.pop(sequence_id, None)

    def remove_work(self, work: Work) -> dict[str, int]:
        """Removes a request's sequences that have not ended, and returns their indices by id."""
        names = {name: index for index, name in enumerate(work.sequence_ids)}
        return {name: index for name, index in names.items() if self._sequences.pop(name, None) is not None}
