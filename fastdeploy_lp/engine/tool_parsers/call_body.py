"""Incremental parser of one call, a JSON object `{"name": …, "arguments": {…}}`."""

from __future__ import annotations

import json

NAME, ARGUMENTS = "name", "arguments"


class CallBody:
    """Reads characters; `name` is None until it is known, `take_arguments` returns the new part of the arguments.

    `complete` is set after the object's last brace, `broken` at a character that JSON does not allow there.
    """

    def __init__(self) -> None:
        self.text = ""
        self.name: str | None = None
        self.complete = False
        self.broken = False
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._string_at = 0
        self._key: str | None = None
        self._value_at: int | None = None
        self._arguments_at: int | None = None
        self._arguments_end: int | None = None
        self._given = 0

    def feed(self, text: str) -> str:
        """Reads text up to the object's end or the first invalid character; returns the rest."""
        for place, character in enumerate(text):
            at = len(self.text)
            if self._in_string:
                self._string_character(character, at)
            elif character == "<" or (self._depth == 0 and character != "{" and not character.isspace()):
                self.broken = True
                return text[place:]
            else:
                self._plain_character(character, at)
            self.text += character
            if self.complete:
                return text[place + 1 :]
        return ""

    def take_arguments(self) -> str:
        """Returns the new part of the arguments: an object incrementally, a string with an object once complete."""
        if self._arguments_at is None:
            # Missing arguments mean an empty object.
            return self._give("{}") if self.complete else ""
        raw = self.text[self._arguments_at : self._arguments_end]
        if raw.startswith(("{", "[")):
            return self._give(raw)
        if self._arguments_end is None:
            return ""
        return self._give("{}" if raw.strip() == "null" else _string(raw) or raw.strip())

    def _give(self, arguments: str) -> str:
        new, self._given = arguments[self._given :], len(arguments)
        return new

    def _string_character(self, character: str, at: int) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_string = False
            if self._depth == 1 and self._key is None:
                self._key = _string(self.text[self._string_at :] + character)
            elif self._depth == 1:
                self._end_value(at + 1)

    def _plain_character(self, character: str, at: int) -> None:
        if self._depth == 1 and self._key is not None and character not in ":,}" and not character.isspace():
            self._begin_value(at)
        if character == '"':
            self._in_string, self._string_at = True, at
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            if self._depth == 1:
                self._end_value(at + 1)
            self.complete = self._depth == 0
        if self._depth == 0 or (self._depth == 1 and character == ","):
            self._end_value(at)
            self._key, self._value_at = None, None

    def _begin_value(self, at: int) -> None:
        if self._value_at is None:
            self._value_at = at
            if self._key == ARGUMENTS and self._arguments_at is None:
                self._arguments_at = at

    def _end_value(self, end: int) -> None:
        """Ends a value; its last character may be the current one, which is then a bracket or a quote."""
        if self._value_at is None:
            return
        if self._key == ARGUMENTS and self._arguments_end is None:
            self._arguments_end = end
        elif self._key == NAME and self.name is None:
            closing = '"' if end > len(self.text) else ""
            self.name = _string(self.text[self._value_at : end] + closing)


def _string(raw: str) -> str | None:
    """Returns the text of a JSON string; None for anything else, and for half a surrogate pair."""
    try:
        value = json.loads(raw)
        return value if isinstance(value, str) and value.encode() is not None else None
    except ValueError:
        return None
