"""Base class of reasoning parsers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class SplitText:
    """A piece of text split into reasoning and answer, without markers."""

    reasoning: str = ""
    content: str = ""


class ReasoningParser(ABC):
    """Splits one completion's text incrementally; a whole text is one piece, so both ways return the same.

    `begin` and `end` are the markers around reasoning. With `reasons_unmarked`, every output begins with reasoning,
    with or without the begin marker; otherwise only an output that begins with the marker has any. `length` counts the
    characters up to the end of the reasoning, markers included.
    """

    begin: ClassVar[str]
    end: ClassVar[str]
    reasons_unmarked: ClassVar[bool] = False

    def __init__(self) -> None:
        self.length = 0

    @abstractmethod
    def push(self, text: str) -> SplitText:
        """Returns what is certain after this piece; holds back an end that may be the beginning of a marker."""

    @abstractmethod
    def finish(self) -> SplitText:
        """Returns the text held back when the completion ended."""
