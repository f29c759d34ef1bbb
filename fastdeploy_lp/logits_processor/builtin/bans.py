"""Bans: builtins that rule tokens out by their ids."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.builtin.slot_processor import SlotProcessor
from fastdeploy_lp.logits_processor.builtin.token_lists import MAX_SEQUENCES, TokenSequence, TokenSet
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest, State

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.model_executor.ops.row_ops import RowEdits
    from fastdeploy_lp.request.sampling_params import SamplingParams

Int64s = NDArray[np.int64]
Count = Annotated[int, Field(strict=True, ge=0, le=2**63 - 1)]


class TokenBanProcessor(SlotProcessor[State]):
    """Sets the tokens that `_banned` returns for each request to -inf."""

    def __init__(self, fd_config: FDConfig, edits: RowEdits | None = None) -> None:
        super().__init__(fd_config, edits)
        self._rows = self._tokens = np.empty(0, np.int64)

    @abstractmethod
    def _banned(self, state: State) -> Int64s:
        """Returns the tokens to rule out in this step."""

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:  # noqa: ARG002 - every step differs
        banned = [self._banned(state) for state in self._slots.states]
        self._tokens = np.concatenate(banned) if banned else np.empty(0, np.int64)
        self._rows = np.repeat(self._slots.rows, np.array([len(tokens) for tokens in banned], np.int64))

    def _edit(self, logits: Tensor) -> None:
        if self._tokens.size:
            self._edits.ban(logits, self._rows, self._tokens)


class AllowedTokensParams(BaseModel):
    """`allowed_token_ids`: at least one token id."""

    model_config = ConfigDict(extra="forbid")

    allowed_token_ids: TokenSet | None = None


class AllowedTokensLogitsProcessor(SlotProcessor[Int64s]):
    """`{"allowed_token_ids": [token_id, …]}` sets every other token to -inf.

    As in vLLM. The request field of this name does the same after the chain.
    """

    Params = AllowedTokensParams
    steps_at_rest = sys.maxsize

    def _build(self, request: SlotRequest) -> Int64s | None:
        allowed = request.args.get("allowed_token_ids")
        return np.unique(np.array(allowed, np.int64)) if allowed else None

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:  # noqa: ARG002 - built per batch
        if changed and self._slots.states:
            from fastdeploy_lp.model_executor.ops.row_ops import TokenLists

            self._lists = TokenLists.of(self._slots.rows.tolist(), self._slots.states)

    def _edit(self, logits: Tensor) -> None:
        self._edits.allow_only(logits, self._lists)


class BadWordsParams(BaseModel):
    """`bad_words_token_ids`: lists of token ids."""

    model_config = ConfigDict(extra="forbid")

    bad_words_token_ids: Annotated[list[TokenSequence], Field(max_length=MAX_SEQUENCES)] | None = None


@dataclass(frozen=True)
class _Watched:
    words: BadWords
    output: list[int]


class BadWordsLogitsProcessor(TokenBanProcessor[_Watched]):
    """`{"bad_words_token_ids": [[token_id, …], …]}` sets the last token of each list to -inf after the others.

    A list applies while the output ends with its other tokens; the prompt does not count. As in vLLM, and as Hugging
    Face's `bad_words_ids`. The request field of this name does the same after the chain.
    """

    Params = BadWordsParams

    def _build(self, request: SlotRequest) -> _Watched | None:
        words = request.args.get("bad_words_token_ids")
        return _Watched(BadWords(words), request.output) if words else None

    def _banned(self, state: _Watched) -> Int64s:
        return state.words.banned(state.output)


class BadWords:
    """Bans a sequence's last token while the output ends with the tokens before it."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self._single = np.array([word[0] for word in sequences if len(word) == 1], np.int64)
        # By the token that must be the output's last for the ban to apply, so that a step checks few of them.
        self._after: dict[int, list[tuple[list[int], int]]] = {}
        for word in sequences:
            if len(word) > 1:
                self._after.setdefault(word[-2], []).append((list(word[:-1]), word[-1]))

    def banned(self, output: Sequence[int]) -> Int64s:
        """Returns the tokens that would complete one of the sequences."""
        candidates = self._after.get(output[-1], ()) if output else ()
        completing = [last for beginning, last in candidates if list(output[-len(beginning) :]) == beginning]
        return np.concatenate([self._single, np.array(completing, np.int64)]) if completing else self._single


class MinTokensParams(BaseModel):
    """`min_tokens`: minimum number of output tokens, 0 to `max_tokens`."""

    model_config = ConfigDict(extra="forbid")

    min_tokens: Count | None = None


@dataclass(frozen=True)
class _Minimum:
    count: int
    stop_token_ids: list[int]
    output: list[int]


class MinTokensLogitsProcessor(SlotProcessor[_Minimum]):
    """`{"min_tokens": n}` sets end-of-sequence and stop tokens to -inf until the output has n tokens.

    As in vLLM; stop strings still end the output. The request field of this name does the same after the chain.
    """

    Params = MinTokensParams

    def __init__(self, fd_config: FDConfig, edits: RowEdits | None = None) -> None:
        super().__init__(fd_config, edits)
        self._rows = self._tokens = np.empty(0, np.int64)

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raises ValueError if `min_tokens` is greater than `max_tokens`."""
        minimum, most = (sampling_params.extra_args or {}).get("min_tokens") or 0, sampling_params.max_tokens
        if most is not None and minimum > most:
            raise ValueError(f"min_tokens: must be at most max_tokens, which is {most}")

    def _build(self, request: SlotRequest) -> _Minimum | None:
        count, params = request.args.get("min_tokens"), request.params
        stops = {*(params.stop_token_ids or ()), *(() if params.ignore_eos else self._eos_token_ids)}
        return _Minimum(count, sorted(stops), request.output) if count and stops else None

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:  # noqa: ARG002 - in the states
        states, rows = self._slots.states, self._slots.rows
        missing = np.array([state.count - len(state.output) for state in states], np.int64)
        short = missing > 0
        # Until then the same requests stay below their minimum; each gets one token a step.
        self.steps_at_rest = int(missing[short].min()) - 1 if short.any() else sys.maxsize
        banned = [states[at].stop_token_ids for at in np.flatnonzero(short).tolist()]
        self._rows = np.repeat(rows[short], np.array([len(tokens) for tokens in banned], np.int64))
        self._tokens = np.array([token for tokens in banned for token in tokens], np.int64)

    def _edit(self, logits: Tensor) -> None:
        if self._tokens.size:
            self._edits.ban(logits, self._rows, self._tokens)
