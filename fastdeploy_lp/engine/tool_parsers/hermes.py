"""Parser of `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen2.5, Qwen3 and many others."""

from __future__ import annotations

import json

from fastdeploy_lp.engine.marker import cut_at
from fastdeploy_lp.engine.tool_parsers.base import ParsedText, ToolCallDelta, ToolParser
from fastdeploy_lp.engine.tool_parsers.call_body import CallBody

BEGIN, END = "<tool_call>", "</tool_call>"


class HermesToolParser(ToolParser):
    """Parser of Hermes calls; whitespace around calls belongs neither to the calls nor to the answer."""

    marker = BEGIN
    end_marker = END

    @classmethod
    def call_frame(cls, name: str) -> tuple[str, str]:
        """See `ToolParser.call_frame`."""
        return f'{BEGIN}\n{{"name": {json.dumps(name)}, "arguments": ', f"}}\n{END}"

    def __init__(self) -> None:
        self._waiting = ""
        self._body: CallBody | None = None
        self._space = ""
        self._announced = False
        self._behind_call = False
        self._closed = True
        self._num_calls = 0
        self._content = ""
        self._calls: list[ToolCallDelta] = []

    def push(self, text: str) -> ParsedText:
        """See `ToolParser.push`."""
        self._waiting += text
        while self._read_call() if self._body is not None else self._read_text():
            pass
        return self._taken()

    def finish(self) -> ParsedText:
        """See `ToolParser.finish`."""
        if self._body is not None and not self._announced:
            self._content += self._space + BEGIN + self._body.text
        if not self._behind_call or self._waiting.strip():
            self._content += self._waiting
        self._waiting = ""
        return self._taken()

    def _read_text(self) -> bool:
        """Reads answer text up to the next call; returns False if more text is needed."""
        # A second end marker is answer text, even as a separate piece.
        if not self._closed and not self._close():
            return False
        self._closed = True
        text, found, rest = cut_at(self._waiting, BEGIN)
        shown = text.rstrip()
        if found:
            self._body, self._announced, self._space = CallBody(), False, text[len(shown) :]
        else:
            rest = text[len(shown) :] + rest
        if shown:
            self._content += shown.lstrip() if self._behind_call else shown
            self._behind_call = False
        self._waiting = rest
        return found

    def _close(self) -> bool:
        """Skips the end marker; returns False if more text is needed to recognize it."""
        seen = self._waiting.lstrip()
        if len(seen) < len(END) and END.startswith(seen):
            return False
        self._waiting = seen.removeprefix(END) if seen.startswith(END) else self._waiting
        return True

    def _read_call(self) -> bool:
        """Reads the call's body; returns False if more text is needed."""
        body = self._body
        if body is None:
            return True
        self._waiting = body.feed(self._waiting)
        if not self._announced and body.name is not None:
            self._announced = True
            self._calls.append(ToolCallDelta(self._num_calls, body.name))
            self._num_calls += 1
        if self._announced and (gained := body.take_arguments()):
            self._calls.append(ToolCallDelta(self._num_calls - 1, None, gained))
        if not (body.complete or body.broken):
            return False
        if not self._announced:
            self._content += self._space + BEGIN + body.text
        self._behind_call = self._announced
        self._closed = not self._announced
        self._body = None
        return True

    def _taken(self) -> ParsedText:
        taken = ParsedText(self._content, self._calls)
        self._content, self._calls = "", []
        return taken
