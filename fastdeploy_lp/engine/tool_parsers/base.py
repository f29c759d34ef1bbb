"""Base class of tool parsers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True)
class ToolCallDelta:
    """An addition to the `index`-th call: `name` first and once, `arguments` as pieces of JSON."""

    index: int
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True)
class ParsedText:
    """A piece of text: its answer part, and the additions to calls."""

    content: str = ""
    calls: list[ToolCallDelta] = field(default_factory=list)


class ToolParser(ABC):
    """Parses one completion's text incrementally; a whole text is one piece, so both ways return the same.

    Arguments are returned as the model wrote them, valid JSON or not. Text that cannot be a call is answer.
    `marker` is the beginning of calls in the chat templates of models that this parser supports, `end_marker` their
    end.
    """

    marker: ClassVar[str]
    end_marker: ClassVar[str]

    @classmethod
    @abstractmethod
    def call_frame(cls, name: str) -> tuple[str, str]:
        """Returns the text before and after the arguments of a call of the function `name`, as models write it.

        The first part begins with the marker.
        """

    @abstractmethod
    def push(self, text: str) -> ParsedText:
        """Returns what is certain after this piece."""

    @abstractmethod
    def finish(self) -> ParsedText:
        """Returns the text held back when the completion ended."""
