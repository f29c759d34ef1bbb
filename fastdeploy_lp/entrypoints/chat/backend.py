"""The interface between a chat and the source of its answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

Message = Mapping[str, str]


class BackendError(Exception):
    """A failure to answer; the message states the reason."""


class Backend(Protocol):
    """Answers conversations."""

    def answer(self, messages: Sequence[Message], settings: Mapping[str, Any]) -> Iterator[str]:
        """Yields pieces of the answer as they arrive; closing the iterator aborts the request. Raises BackendError.

        settings: fields of a request's body, except its messages.
        """
        ...
