"""What every tool parser does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True)
class ToolCallDelta:
    """What the `index`-th call gained: `name` comes first and once, `arguments` as pieces of JSON."""

    index: int
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True)
class ParsedText:
    """A piece of text: what is answer, and what calls gained."""

    content: str = ""
    calls: list[ToolCallDelta] = field(default_factory=list)


class ToolParser(ABC):
    """Takes one completion's text as it comes; a whole text is one piece, so that both ways give the same.

    Arguments are given as the model wrote them, valid JSON or not. What cannot be a call is answer.
    `marker` is what calls begin with in the chat templates of models that this parser is for.
    """

    marker: ClassVar[str]

    @classmethod
    @abstractmethod
    def call_frame(cls, name: str) -> tuple[str, str]:
        """What stands before and behind the arguments of a call of the function `name`, as models write it.

        It begins with the marker.
        """

    @abstractmethod
    def push(self, text: str) -> ParsedText:
        """What is certain with this piece."""

    @abstractmethod
    def finish(self) -> ParsedText:
        """What waited when the text ended."""
