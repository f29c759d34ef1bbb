"""Log probabilities of a prompt, kept as the arrays that the worker sends and spelled out position by position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, overload

import numpy as np

from fastdeploy_lp.engine.logprobs import spelled_out
from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.messages import PackedLogprobs, TokenLogprobs
from fastdeploy_lp.outputs import Logprob

Position: TypeAlias = dict[int, Logprob] | None


class PromptLogprobs(Sequence[Position]):
    """By token id at each position of the prompt, None at the first; compares and pickles as a list of them.

    A position becomes a dict when it is read: those of a long prompt at once would hold up the event loop.
    """

    def __init__(self, packed: PackedLogprobs, tokenizer: Tokenizer) -> None:
        self._token_ids = np.frombuffer(packed.token_ids, "<i4").reshape(-1, packed.width)
        self._logprobs = np.frombuffer(packed.logprobs, "<f4").reshape(-1, packed.width)
        self._ranks = np.frombuffer(packed.ranks, "<i4")
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        return 1 + len(self._ranks)

    @overload
    def __getitem__(self, index: int) -> Position: ...

    @overload
    def __getitem__(self, index: slice) -> list[Position]: ...

    def __getitem__(self, index: int | slice) -> Position | list[Position]:
        places = range(len(self))[index]
        return self._read(places) if isinstance(places, int) else [self._read(place) for place in places]

    def __iter__(self) -> Iterator[Position]:
        return map(self._read, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)

    def _read(self, place: int) -> Position:
        if not place:
            return None
        row = place - 1
        tokens, logprobs = self._token_ids[row].tolist(), self._logprobs[row].tolist()
        return spelled_out(TokenLogprobs(tokens, logprobs, int(self._ranks[row])), self._tokenizer)
