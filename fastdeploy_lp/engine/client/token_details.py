"""The worker's log probabilities and traces with the text of their tokens."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

import numpy as np

from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.messages import PackedLogprobs, ShadowTokens, StageNumbers, StageTrace, TokenLogprobs
from fastdeploy_lp.request.outputs import Logprob
from fastdeploy_lp.request.trace import ShadowReport, ShadowToken, TokenText, TokenTrace, TracedToken, TraceStage

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


class PromptLogprobs(SpelledPositions[dict[int, Logprob] | None]):
    """Log probabilities by token id at each position of the prompt, None at the first."""

    def __init__(self, packed: PackedLogprobs, tokenizer: Tokenizer) -> None:
        self._token_ids = np.frombuffer(packed.token_ids, "<i4").reshape(-1, packed.width)
        self._logprobs = np.frombuffer(packed.logprobs, "<f4").reshape(-1, packed.width)
        self._ranks = np.frombuffer(packed.ranks, "<i4")
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        return 1 + len(self._ranks)

    def read(self, place: int) -> dict[int, Logprob] | None:
        """See `SpelledPositions.read`."""
        if not place:
            return None
        row = place - 1
        tokens, logprobs = self._token_ids[row].tolist(), self._logprobs[row].tolist()
        return spelled_out(TokenLogprobs(tokens, logprobs, int(self._ranks[row])), self._tokenizer)


NO_TOKEN = -1


def spelled_trace(
    token_id: int, stages: Sequence[StageTrace], shadows: ShadowTokens | None, tokenizer: Tokenizer
) -> TokenTrace:
    """Returns the worker's trace of one sampled token in the form sent to the caller."""
    told: list[TraceStage] = []
    before: StageNumbers | None = None
    for stage in stages:
        told.append(_stage(token_id, stage, before, tokenizer))
        before = stage.numbers or before
    return TokenTrace(
        token_id=token_id,
        decoded_token=tokenizer.token_text(token_id),
        token_bytes=tokenizer.token_bytes(token_id),
        stages=told,
        shadows={name: _shadow(token_id, other, tokenizer) for name, other in (shadows or {}).items()},
    )


def count_shadows(reports: dict[str, ShadowReport], token_id: int, shadows: Mapping[str, int | None]) -> None:
    """Adds the effect that processors in shadow would have had on one token to a completion's counts."""
    for name, other in shadows.items():
        report = reports.setdefault(name, ShadowReport())
        if other is None:
            report.faults += 1
        else:
            report.tokens += 1
            report.changed += other != token_id


def _stage(token_id: int, stage: StageTrace, before: StageNumbers | None, tokenizer: Tokenizer) -> TraceStage:
    numbers = stage.numbers
    if numbers is None:
        taken = [
            TokenText(token, tokenizer.token_text(token), tokenizer.token_bytes(token))
            for token in stage.taken_back or ()
        ]
        return TraceStage(stage.name, stage.kind, stage.status, stage.seconds, taken_back=taken)
    top = []
    rank = 1
    for place, (token, logit) in enumerate(zip(numbers.token_ids, numbers.logits, strict=True)):
        if place and logit < numbers.logits[place - 1]:
            rank = place + 1
        top.append(_token(token, logit, rank, numbers.log_sum, tokenizer))
    return TraceStage(
        name=stage.name,
        kind=stage.kind,
        status=stage.status,
        seconds=stage.seconds,
        top=top,
        sampled=_token(token_id, numbers.logit, numbers.rank, numbers.log_sum, tokenizer),
        entropy=numbers.entropy,
        mass_moved=numbers.moved,
        flipped=before is not None and before.most_likely != numbers.most_likely,
    )


def _token(token_id: int, logit: float, rank: int, log_sum: float, tokenizer: Tokenizer) -> TracedToken:
    text, content = tokenizer.token_text(token_id), tokenizer.token_bytes(token_id)
    return TracedToken(token_id, logit, math.exp(logit - log_sum), rank, text, content)


def _shadow(token_id: int, other: int | None, tokenizer: Tokenizer) -> ShadowToken:
    if other is None:
        return ShadowToken(None, None, changed=False, failed=True)
    if other == NO_TOKEN:
        return ShadowToken(None, None, changed=True)
    return ShadowToken(other, tokenizer.token_text(other), changed=other != token_id)
