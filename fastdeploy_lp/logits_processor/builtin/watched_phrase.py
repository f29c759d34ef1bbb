"""Base of builtins that force a phrase when the logits meet a condition, the sign."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.builtin.slot_processor import SlotProcessor
from fastdeploy_lp.logits_processor.sequence_state.slot_states import SlotRequest
from fastdeploy_lp.platforms import on_host, to_device, writable_view, write_rows

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig

Int64s = NDArray[np.int64]


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

    def rest(self) -> Sequence[int]:
        """Returns the tokens of the phrase that must come next, empty outside the phrase."""
        if self.forced() is None or self.start is None:
            return ()
        return self.phrase[len(self.output) - self.start :]

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


class WatchedPhraseProcessor(SlotProcessor[WatchedRequest]):
    """Checks the rows of requests that wait for a sign, and forces their phrases token by token.

    The sign of a row is computed where the logits are, and so is its phrase's first token. Results are read at the
    start of the next step: on a device they are ready by then, since the step's tokens were.
    """

    # Tokens do not determine all state. Finished requests also take places until preempted requests return.
    remembered_per_slot = 4

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        self._forced: tuple[Int64s, Int64s] = np.empty(0, np.int64), np.empty(0, np.int64)
        self._watched: list[tuple[int, WatchedRequest]] = []
        self._signs: NDArray[np.bool_] | Tensor | None = None

    @abstractmethod
    def sign_in(self, row: NDArray[Any], state: Any) -> bool:
        """Returns True if one row of logits [vocab_size] shows the sign."""

    @abstractmethod
    def signs_on_device(self, rows: Tensor, states: Sequence[Any]) -> Tensor:
        """Returns the signs, bool [n], of a float32 copy of the rows [n, vocab_size] on a device."""

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Reads the signs and tokens of the last step."""
        self._end_step()
        super().update_state(share_inputs)

    def forced_tokens(self, slot: int, output: Sequence[int]) -> Sequence[int]:
        """See `LogitsProcessor`. Reads the signs of the last step, as the next `update_state` would."""
        self._end_step()
        state = self._slots.state_of(slot, output)
        return () if state is None else state.rest()

    def _prepare(self, share_inputs: Mapping[str, Any], *, changed: bool) -> None:  # noqa: ARG002 - every step differs
        forced: list[tuple[int, int]] = []
        self._watched = []
        for row, state in self._slots:
            token = state.forced()
            if token is not None:
                forced.append((row, token))
            elif state.watches:
                state.begin_step()
                self._watched.append((row, state))
        rows, tokens = np.array(forced, np.int64).reshape(-1, 2).T.copy()
        self._forced = rows, tokens

    def _edit(self, logits: Tensor) -> None:
        if self._forced[0].size:
            self._edits.force(logits, *self._forced)
        if self._watched:
            host = writable_view(logits)
            self._signs = self._watch(host) if host is not None else self._watch_on_device(logits)

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
        each = np.arange(len(states))
        banned = [np.array(state.banned, np.int64) for state in states]
        self._edits.ban(rows, np.repeat(each, list(map(len, banned))), np.concatenate(banned))
        phrases = paddle.full_like(rows, -np.inf)
        self._edits.force(phrases, each, np.array([state.phrase[0] for state in states], np.int64))
        begins = paddle.logical_and(signs, to_device(np.array([state.armed for state in states])))
        write_rows(logits, where, paddle.where(begins.unsqueeze(-1), phrases, rows).astype(logits.dtype))
        return signs

    def _end_step(self) -> None:
        signs, self._signs = self._signs, None
        if signs is None:
            return
        # No copy in host memory; from a device, a copy of one byte for each checked row.
        for (_, state), sign in zip(self._watched, on_host(signs).astype(bool).tolist(), strict=True):
            state.end_step(sign=sign)


def greatest_is_one_of(rows: Tensor, tokens: Sequence[Sequence[int]]) -> Tensor:
    """Returns, for each of rows [n, vocab_size], True if its greatest logit is that of one of tokens[i]: bool [n]."""
    import paddle

    width = max(map(len, tokens), default=0) or 1
    padded = np.full((len(tokens), width), -1, np.int64)
    for index, each in enumerate(tokens):
        padded[index, : len(each)] = list(each)
    greatest = paddle.argmax(rows, axis=-1, keepdim=True)
    return (greatest == to_device(padded)).any(axis=-1)
