"""Reasoning between `<think>` and `</think>`."""

from __future__ import annotations

from fastdeploy_lp.engine.marker import cut_at
from fastdeploy_lp.engine.reasoning_parsers.base import ReasoningParser, SplitText

BEGIN, END = "<think>", "</think>"


class Qwen3Parser(ReasoningParser):
    """Parser for text that begins with the marker, or has no reasoning."""

    begin = BEGIN
    end = END

    def __init__(self) -> None:
        super().__init__()
        self._waiting = ""
        self._begun = False
        self._ended = False

    def push(self, text: str) -> SplitText:
        """See `ReasoningParser.push`."""
        if self._ended:
            return SplitText(content=text)
        self._waiting += text
        if not self._begun and not self._begin():
            return SplitText()
        return self._take()

    def finish(self) -> SplitText:
        """See `ReasoningParser.finish`."""
        rest, self._waiting = self._waiting, ""
        if not rest or not (self._begun or self.reasons_unmarked):
            return SplitText(content=rest)
        self.length += len(rest)
        return SplitText(reasoning=rest)

    def _begin(self) -> bool:
        """Checks for the begin marker; returns False if more text is needed."""
        seen = self._waiting.lstrip()
        if len(seen) < len(BEGIN) and BEGIN.startswith(seen):
            return False
        if seen.startswith(BEGIN):
            self.length = len(self._waiting) - len(seen) + len(BEGIN)
            self._waiting = seen[len(BEGIN) :]
        else:
            self._ended = not self.reasons_unmarked
        self._begun = True
        return True

    def _take(self) -> SplitText:
        if self._ended:
            text, self._waiting = self._waiting, ""
            return SplitText(content=text)
        reasoning, self._ended, rest = cut_at(self._waiting, END)
        self.length += len(reasoning) + (len(END) if self._ended else 0)
        self._waiting = "" if self._ended else rest
        return SplitText(reasoning, rest if self._ended else "")


class DeepSeekR1Parser(Qwen3Parser):
    """Parser for models whose prompt ends with the marker: output begins with reasoning, with or without the marker."""

    reasons_unmarked = True
