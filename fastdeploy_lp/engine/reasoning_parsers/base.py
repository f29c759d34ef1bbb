"""What every reasoning parser does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class SplitText:
    """A piece of text by what it is; markers are in neither."""

    reasoning: str = ""
    content: str = ""


class ReasoningParser(ABC):
    """Takes one completion's text as it comes; a whole text is one piece, so that both ways give the same.

    `length` counts the characters up to the end of the reasoning, markers included.
    """

    def __init__(self) -> None:
        self.length = 0

    @abstractmethod
    def push(self, text: str) -> SplitText:
        """What is certain with this piece; an end that may be the beginning of a marker waits for the next one."""

    @abstractmethod
    def finish(self) -> SplitText:
        """What waited when the text ended."""
