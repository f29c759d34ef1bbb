"""Base of builtins that force a phrase when the logits meet a condition, the sign."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.base import LogitsProcessor
from fastdeploy_lp.logits_processor.builtin.logit_rows import LogitRows
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest, SlotStates
from fastdeploy_lp.platforms import in_host_memory, to_device

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig


class WatchedRequest:
    """One request that writes `phrase` up to `times` times; `banned` is ruled out while it waits for the sign.

    The position in the phrase follows from the output index at which it began. For a request from another instance, the
    output shows the phrases begun there.
    """

    def __init__(self, request: SlotRequest, phrase: Sequence[int], *, times: int = 1) -> None:
        self.output, self.phrase = request.output, list(phrase)
        self.left = times
        self.banned: Sequence[int] = ()
        # Output index at which the phrase begins, while it is being written.
        self.start: int | None = None
        self._watched_at = 0
        self._armed = False
        self._recover()

    @property
    def armed(self) -> bool:
        """True if the next sign starts the phrase."""
        return True

    def note(self) -> None:
        """Called for each sign."""

    def advance(self) -> None:
        """Called before each step, to follow the tokens of the last one."""

    def forced(self) -> int | None:
        """Returns the token of the phrase that must come next, None outside the phrase."""
        if self.start is not None and len(self.output) - self.start >= len(self.phrase):
            self.start = None
            self.left -= 1
        self.advance()
        return None if self.start is None else self.phrase[len(self.output) - self.start]

    @property
    def watches(self) -> bool:
        """True if the row is checked in this step."""
        return self.left > 0 and self.start is None

    def begin_step(self) -> None:
        """Records that the row is checked in this step."""
        self._watched_at, self._armed = len(self.output), self.armed

    def end_step(self, *, sign: bool) -> None:
        """Records the result of the check; the phrase has begun only if its first token was generated."""
        if not sign:
            return
        if self._armed and self.output[self._watched_at : self._watched_at + 1] == self.phrase[:1]:
            self.start = self._watched_at
        self.note()

    def _recover(self) -> None:
        """Finds phrases written before, and the beginning of one at the end of the output."""
        at, length = 0, len(self.phrase)
        while self.left and at + length <= len(self.output):
            found = self.output[at : at + length] == self.phrase
            self.left -= found
            at += length if found else 1
        for held in range(min(length - 1, len(self.output) - at), 1, -1):
            if self.left and self.output[-held:] == self.phrase[:held]:
                self.start = len(self.output) - held
                return


class WatchedPhraseProcessor(LogitsProcessor):
    """Checks the rows of requests that wait for a sign, and forces their phrases token by token.

    The sign of a row is computed where the logits are, and so is its phrase's first token. Results are read at the
    start of the next step: on a device they are ready by then, since the step's tokens were.
    """

    only_with_args = True

    def __init__(self, fd_config: FDConfig) -> None:
        self.eos_token_ids = list(fd_config.model_config.eos_token_ids)
        # Tokens do not determine all state. Finished requests also take places until preempted requests return.
        self._states = SlotStates(self.state_of, remember=4 * fd_config.scheduler_config.max_num_seqs)
        self._forced: list[tuple[int, int]] = []
        self._watched: list[tuple[int, WatchedRequest]] = []
        self._signs: NDArray[np.bool_] | Tensor | None = None

    @abstractmethod
    def state_of(self, request: SlotRequest) -> WatchedRequest | None:
        """Returns the state of a request that enters a slot, with or without output; None if it needs none."""

    @abstractmethod
    def sign_in(self, row: NDArray[Any], state: Any) -> bool:
        """Returns True if one row of logits [vocab_size] shows the sign."""

    @abstractmethod
    def signs_on_device(self, rows: Tensor, states: Sequence[Any]) -> Tensor:
        """Returns the signs, bool [n], of a float32 copy of the rows [n, vocab_size] on a device."""

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Reads the signs and tokens of the last step."""
        self._end_step()
        self._forced, self._watched = [], []
        self._states.follow(share_inputs)
        for row, state in self._states:
            token = state.forced()
            if token is not None:
                self._forced.append((row, token))
            elif state.watches:
                state.begin_step()
                self._watched.append((row, state))

    def apply(self, logits: Tensor) -> Tensor:
        """Forces phrases and checks rows, in place."""
        if not self._forced and not self._watched:
            return logits
        rows = LogitRows(logits)
        if self._forced:
            rows.force([row for row, _ in self._forced], [token for _, token in self._forced])
        if self._watched:
            self._signs = self._watch(rows.host) if rows.host is not None else self._watch_on_device(logits)
        return logits

    def _watch(self, host: NDArray[Any]) -> NDArray[np.bool_]:
        signs = np.zeros(len(self._watched), bool)
        for index, (row, state) in enumerate(self._watched):
            logits = host[row]
            signs[index] = self.sign_in(logits, state)
            if signs[index] and state.armed:
                logits[:] = -np.inf
                logits[state.phrase[0]] = 0.0
            elif state.banned:
                logits[state.banned] = -np.inf
        return signs

    def _watch_on_device(self, logits: Tensor) -> Tensor:
        import paddle

        states = [state for _, state in self._watched]
        where = to_device(np.array([row for row, _ in self._watched], np.int64))
        # Some Paddle backends cannot compare half-precision numbers.
        rows = paddle.gather(logits, where).astype("float32")
        signs = self.signs_on_device(rows, states)
        LogitRows(rows).ban(*_places([state.banned for state in states]))
        phrases = paddle.full_like(rows, -np.inf)
        LogitRows(phrases).force(range(len(states)), [state.phrase[0] for state in states])
        begins = paddle.logical_and(signs, to_device(np.array([state.armed for state in states])))
        logits.index_put_((where,), paddle.where(begins.unsqueeze(-1), phrases, rows).astype(logits.dtype))
        return signs

    def _end_step(self) -> None:
        signs, self._signs = self._signs, None
        if signs is None:
            return
        # No copy in host memory; from a device, a copy of one byte for each checked row.
        seen = signs if isinstance(signs, np.ndarray) else _on_host(signs)
        for (_, state), sign in zip(self._watched, seen.tolist(), strict=True):
            state.end_step(sign=sign)


def _places(tokens: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    rows = [row for row, each in enumerate(tokens) for _ in each]
    return rows, [token for each in tokens for token in each]


def _on_host(flags: Tensor) -> NDArray[np.bool_]:
    return np.asarray(np.from_dlpack(flags) if in_host_memory(flags) else flags.numpy(), np.bool_)


def greatest_is_one_of(rows: Tensor, tokens: Sequence[Sequence[int]]) -> Tensor:
    """Returns, for each of rows [n, vocab_size], True if its greatest logit is that of one of tokens[i]: bool [n]."""
    import paddle

    width = max(map(len, tokens), default=0) or 1
    padded = np.full((len(tokens), width), -1, np.int64)
    for index, each in enumerate(tokens):
        padded[index, : len(each)] = list(each)
    greatest = paddle.argmax(rows, axis=-1, keepdim=True)
    return (greatest == to_device(padded)).any(axis=-1)
