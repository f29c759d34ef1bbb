"""The worker's log probabilities with the text of their tokens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, overload

from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.messages import TokenLogprobs
from fastdeploy_lp.outputs import Logprob

Position = TypeVar("Position", bound=dict[int, Logprob] | None)


class SpelledPositions(Sequence[Position]):
    """Token data by position; compares and pickles as a list.

    A position becomes a dict only when it is read: converting a long text at once would block the event loop.
    """

    @abstractmethod
    def read(self, place: int) -> Position:
        """Returns the data at this position, counted from 0."""

    @overload
    def __getitem__(self, index: int) -> Position: ...

    @overload
    def __getitem__(self, index: slice) -> list[Position]: ...

    def __getitem__(self, index: int | slice) -> Position | list[Position]:
        places = range(len(self))[index]
        return self.read(places) if isinstance(places, int) else [self.read(place) for place in places]

    def __iter__(self) -> Iterator[Position]:
        return map(self.read, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


class SpelledLogprobs(SpelledPositions[dict[int, Logprob]]):
    """Log probabilities by token id at each position of an output."""

    def __init__(self, positions: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> None:
        self._positions = positions
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        return len(self._positions)

    def read(self, place: int) -> dict[int, Logprob]:
        """See `SpelledPositions.read`."""
        return spelled_out(self._positions[place], self._tokenizer)


def spelled_out(position: TokenLogprobs, tokenizer: Tokenizer) -> dict[int, Logprob]:
    """Returns log probabilities by token id: the actual token first, then the other most likely ones."""
    found = {position.token_ids[0]: (position.logprobs[0], position.rank)}
    for rank, token in enumerate(position.token_ids[1:], start=1):
        found.setdefault(token, (position.logprobs[rank], rank))
    return {token: Logprob(logprob, rank, tokenizer.token_text(token)) for token, (logprob, rank) in found.items()}
