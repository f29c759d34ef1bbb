"""What a chat needs of the place where its answers come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

Message = Mapping[str, str]


class BackendError(Exception):
    """An answer that cannot be had, and why."""


class Backend(Protocol):
    """Answers conversations."""

    def answer(self, messages: Sequence[Message], settings: Mapping[str, Any]) -> Iterator[str]:
        """Pieces of the answer as they come; closing the iterator aborts it. Raises BackendError.

        settings: fields of a request's body but for its messages.
        """
        ...
