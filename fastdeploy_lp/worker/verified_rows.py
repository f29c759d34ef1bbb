"""The model's logits for a step's draft tokens, and the tokens that are drawn from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.config.speculation import MAX_DRAFT
from fastdeploy_lp.logits_processor.chain.rows import take_rows
from fastdeploy_lp.worker.sequence import ScheduledChunk


@dataclass(frozen=True)
class DrawnAhead:
    """Tokens of whole drafts, drawn before it is known which draft tokens are right.

    chunks: the sequences; counts: the rows of each, of its next token and of further ones. drawn: their tokens, int64
    [rows], on the device or on the host. has_all: the next token of every sequence that samples is among them.
    """

    chunks: Sequence[ScheduledChunk] = ()
    counts: Sequence[int] = ()
    drawn: Tensor | NDArray[np.int64] = field(default_factory=partial(np.empty, 0, np.int64))
    has_all: bool = False

    @property
    def tensors(self) -> list[Tensor]:
        """The tokens, if they are on the device."""
        return [] if isinstance(self.drawn, np.ndarray) else [self.drawn]

    def unpack(self, read: Iterator[NDArray[Any]]) -> dict[int, list[int]]:
        """Returns by slot the next token, and the tokens that follow right draft tokens.

        Consumes the host copies of `tensors` from `read`. A further row without a token ends a list: the next round
        reports it.
        """
        host = self.drawn if isinstance(self.drawn, np.ndarray) else next(read).astype(np.int64)
        drawn = iter(host.tolist())
        runs = [list(islice(drawn, count)) for count in self.counts]
        return {chunk.sequence.slot: _verified(chunk.draft, run) for chunk, run in zip(self.chunks, runs, strict=True)}


def _verified(draft: Sequence[int], drawn: list[int]) -> list[int]:
    """Returns the first token that was drawn, and the tokens after right draft tokens."""
    count = 1
    while count < len(drawn) and drawn[count - 1] == draft[count - 1] and drawn[count] >= 0:
        count += 1
    return drawn[:count]


MAX_ROWS = 1 + MAX_DRAFT
# Draws a token for each row of logits [rows, vocab_size], on the device or on the host; slots, places: int64 [rows].
Draw = Callable[[Tensor, NDArray[np.int64], NDArray[np.int64]], Tensor | NDArray[np.int64]]


class VerifiedRows:
    """Logits [rows, vocab_size]: of each chunk the row of its last token, then the rows of its draft tokens."""

    def __init__(self, logits: Tensor, chunks: Sequence[ScheduledChunk]) -> None:
        self._logits = logits
        starts = accumulate((1 + len(chunk.draft) for chunk in chunks), initial=0)
        self._first = {chunk.sequence.slot: start for chunk, start in zip(chunks, starts, strict=False)}

    def logits(self, chunks: Sequence[ScheduledChunk]) -> Tensor:
        """Returns a copy of the chunks' next rows, [chunks, vocab_size]: those after their accepted draft tokens."""
        rows = [self._first[chunk.sequence.slot] + chunk.accepted for chunk in chunks]
        return take_rows(self._logits, np.array(rows, np.int64))

    def draw_ahead(self, chunks: Sequence[ScheduledChunk], known: Mapping[int, int], draw: Draw) -> DrawnAhead:
        """Draws all tokens of these chunks' drafts at once: what they are drawn from depends on their own drafts only.

        chunks: some of the sampling chunks, or all. known: by slot, the number of rows that can be drawn; of other
        slots, all. draw: gets for each row its slot, and the number of draft tokens before it.
        """
        if not chunks:
            return DrawnAhead()
        counts = [min(1 + len(chunk.draft), known.get(chunk.sequence.slot, MAX_ROWS)) for chunk in chunks]
        places = np.concatenate([np.arange(count) for count in counts])
        slots = np.repeat([chunk.sequence.slot for chunk in chunks], counts)
        logits = self._logits
        if len(places) < logits.shape[0]:
            first = [self._first[chunk.sequence.slot] for chunk in chunks]
            logits = take_rows(logits, np.repeat(first, counts) + places)
        has_all = len(chunks) == len(self._first) and all(counts)
        return DrawnAhead(chunks, counts, draw(logits, slots, places), has_all)
