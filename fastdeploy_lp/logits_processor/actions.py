"""Verbs of logits processors: to end a request, to send a value to its client, and to take tokens back."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

ACTIONS = "actions"
"""Attribute of a processor, and parameter of a request's callable, that holds its verbs."""


class Actions(ABC):
    """Verbs of a processor, valid inside `update_state` and `apply`.

    `slot` is a slot that has a row in this step, of a request that the processor works on. Any other slot, and a call
    outside these methods, is a ValueError. A processor that counts rows instead of slots, as vLLM's V1 interface does,
    passes a row.
    """

    @abstractmethod
    def finish(self, slot: int, reason: str) -> None:
        """Ends the request before this step's token, which is dropped.

        Its finish reason is "stop", its stop reason `{"processor": name, "reason": reason}`. Of several calls for one
        request, the first in chain order counts. A reason that is no text, or of more than 1,000 characters, fails
        this request.
        """

    @abstractmethod
    def emit(self, slot: int, value: Any) -> None:
        """Sends a JSON value to the client, with this step's token.

        value: as `json.dumps` accepts it, without NaN and infinity, or an instance of the processor's `Output`. A value
        that is no JSON, that `Output` refuses, that is larger than 128 KiB, or with which the request's values exceed
        1 MiB, fails this request.
        """

    @abstractmethod
    def rewind(self, slot: int, count: int, ban: Iterable[int] = ()) -> None:
        """Takes back the last `count` output tokens; the request continues there, without this step's token.

        At that place, the token ids of `ban` cannot be sampled, nor those of earlier rewinds to it with the same tokens
        before it. Of several calls for one request, the one with the greatest `count` counts; equal ones add up. It
        precedes `finish`, and this step's values are dropped. The class must declare `max_rewind`. More tokens than
        `rewindable` returns, less than one, or an id that is not in the vocabulary, fail this request, as does more
        than 1,000 rewinds.
        """

    @abstractmethod
    def rewindable(self, slot: int) -> int:
        """Returns how many of the last output tokens can be taken back now.

        At most `max_rewind`, and none that the client may have received. After a rewind it is less by the tokens that
        were taken back, and grows again with the output.
        """


class OutsideActions(Actions):
    """Verbs of a processor that no chain runs, as in its constructor."""

    def finish(self, slot: int, reason: str) -> None:  # noqa: ARG002 - contract
        """Raises ValueError."""
        raise outside()

    def emit(self, slot: int, value: Any) -> None:  # noqa: ARG002 - contract
        """Raises ValueError."""
        raise outside()

    def rewind(self, slot: int, count: int, ban: Iterable[int] = ()) -> None:  # noqa: ARG002 - contract
        """Raises ValueError."""
        raise outside()

    def rewindable(self, slot: int) -> int:  # noqa: ARG002 - contract
        """Raises ValueError."""
        raise outside()


OUTSIDE = OutsideActions()


def outside() -> ValueError:
    """Returns the error of a call at another time."""
    return ValueError("actions: the verbs are valid only inside a processor's update_state and apply")


class RowActions(Actions):
    """Verbs of a processor that counts the rows of the logits."""

    def __init__(self, actions: Actions) -> None:
        self._actions = actions
        self._stop_flags: NDArray[np.bool_] = np.ones((0, 1), bool)

    def bind(self, stop_flags: NDArray[np.bool_]) -> None:
        """Sets the stop flags [S, 1] of a step: row r belongs to the r-th slot whose flag is False."""
        self._stop_flags = stop_flags

    def finish(self, slot: int, reason: str) -> None:
        """See `Actions.finish`; `slot` is a row."""
        self._actions.finish(self._slot_of(slot), reason)

    def emit(self, slot: int, value: Any) -> None:
        """See `Actions.emit`; `slot` is a row."""
        self._actions.emit(self._slot_of(slot), value)

    def rewind(self, slot: int, count: int, ban: Iterable[int] = ()) -> None:
        """See `Actions.rewind`; `slot` is a row."""
        self._actions.rewind(self._slot_of(slot), count, ban)

    def rewindable(self, slot: int) -> int:
        """See `Actions.rewindable`; `slot` is a row."""
        return self._actions.rewindable(self._slot_of(slot))

    def _slot_of(self, row: int) -> int:
        active = np.flatnonzero(~self._stop_flags[:, 0])
        if not 0 <= row < len(active):
            raise ValueError(f"actions: there is no row {row}; this step has {len(active)}")
        return int(active[row])


class RequestActions:
    """Verbs of a request's callable, valid during its call."""

    def __init__(self) -> None:
        self._finish: list[str] = []
        self._values: list[Any] = []
        self._rewinds: list[tuple[int, Iterable[int]]] = []
        self._rewindable: Callable[[], int] = lambda: 0
        self._open = False

    def finish(self, reason: str) -> None:
        """Ends the request before this step's token; see `Actions.finish`."""
        self._require_open()
        self._finish.append(reason)

    def emit(self, value: Any) -> None:
        """Sends a value to the client with this step's token; see `Actions.emit`."""
        self._require_open()
        self._values.append(value)

    def rewind(self, count: int, ban: Iterable[int] = ()) -> None:
        """Takes back the last `count` output tokens; see `Actions.rewind`."""
        self._require_open()
        self._rewinds.append((count, ban))

    @property
    def rewindable(self) -> int:
        """Number of the last output tokens that can be taken back now; see `Actions.rewindable`."""
        self._require_open()
        return self._rewindable()

    def of(self, actions: Actions, slot: int) -> RequestActions:
        """Returns itself, for a call in which `actions` has the verbs of the request's slot."""
        self._rewindable = partial(actions.rewindable, slot)
        return self

    def __enter__(self) -> RequestActions:
        """Begins a call."""
        if self._finish or self._values or self._rewinds:
            self._finish, self._values, self._rewinds = [], [], []
        self._open = True
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the call; its actions stay until the next one."""
        self._open = False

    def pass_on(self, actions: Actions, slot: int) -> None:
        """Repeats the last call's actions for the request's slot."""
        for reason in self._finish:
            actions.finish(slot, reason)
        for value in self._values:
            actions.emit(slot, value)
        for count, ban in self._rewinds:
            actions.rewind(slot, count, ban)

    def _require_open(self) -> None:
        if not self._open:
            raise outside()


def give_actions(processor: Any, actions: Actions) -> None:
    """Sets the attribute `actions` of a processor, unless its class uses this name for something else."""
    # Attributes of an author's class may raise anything, and its instances may refuse new ones.
    with suppress(Exception):
        if isinstance(getattr(processor, ACTIONS, OUTSIDE), Actions):
            setattr(processor, ACTIONS, actions)


def takes_actions(call: Any) -> bool:
    """Returns True for a callable with a parameter `actions`."""
    try:
        parameters = inspect.signature(call).parameters
    except (TypeError, ValueError):
        return False
    return ACTIONS in parameters and parameters[ACTIONS].kind in (
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )
